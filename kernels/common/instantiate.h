#pragma once

// Gives the specialisation function<...> of a kernel template the name by which the host finds it.
#define instantiate_kernel(name, function, ...) \
  template [[host_name(name)]] [[kernel]] decltype(function<__VA_ARGS__>) function<__VA_ARGS__>;
