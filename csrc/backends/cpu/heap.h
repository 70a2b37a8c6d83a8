#pragma once

namespace tessl::cpu {

// Lets the process keep up to 64 MiB of what it frees, as it would after it has freed its first large array. glibc
// gives freed memory back beyond a threshold, and gets it again page by page: encoding 9,000 tokens met 25,000 new
// pages. Nothing without glibc, or where the environment sets the threshold.
void keep_freed_memory();

} // namespace tessl::cpu
