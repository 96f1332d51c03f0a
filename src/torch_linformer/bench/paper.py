"""What the paper measured, to stand beside what is measured here."""

SOURCE = "Wang, Li, Khabsa, Fang, Ma: Linformer: Self-Attention with Linear Complexity, arXiv 2006.04768, Table 3"
SETUP = "inference against a standard Transformer of the same size, layerwise sharing, one V100 with 16 GB"
NOTE = "The paper reads the memory saved from the largest batches that fit."

KS = (128, 256, 512, 1024, 2048)

_TIME = {
    512: (1.5, 1.3),
    1024: (1.7, 1.6, 1.3),
    2048: (2.6, 2.4, 2.1, 1.3),
    4096: (3.4, 3.2, 2.8, 2.2, 1.3),
    8192: (5.5, 5.0, 4.4, 3.5, 2.1),
    16384: (8.6, 7.8, 7.0, 5.6, 3.3),
    32768: (13, 12, 11, 8.8, 5.0),
    65536: (20, 18, 16, 14, 7.9),
}
_MEMORY = {
    512: (1.7, 1.5),
    1024: (3.0, 2.9, 1.8),
    2048: (6.1, 5.6, 3.6, 2.0),
    4096: (14, 13, 8.3, 4.3, 2.3),
    8192: (28, 26, 17, 8.5, 4.5),
    16384: (56, 48, 32, 16, 8),
    32768: (56, 48, 36, 18, 16),
    65536: (60, 52, 40, 20, 18),
}


def _cells(table: dict[int, tuple[float, ...]]) -> dict[tuple[int, int], float]:
    return {(n, k): float(factor) for n, row in table.items() for k, factor in zip(KS, row, strict=False)}


TIME_SAVED: dict[tuple[int, int], float] = _cells(_TIME)
"""How many times faster, by (N, K)."""

MEMORY_SAVED: dict[tuple[int, int], float] = _cells(_MEMORY)
"""How many times less memory, by (N, K)."""
