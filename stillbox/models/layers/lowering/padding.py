"""How many zeros stand before and after a row of pixels."""


def same_padding(side: int, taps: int, stride: int) -> tuple[int, int]:
    """TF's SAME: as little as possible, the odd pixel at the end."""
    total = max((-(-side // stride) - 1) * stride + taps - side, 0)
    return total // 2, total - total // 2


def even_padding(taps: int) -> tuple[int, int]:
    """slim's fixed padding: it depends on the kernel only and is the same at both ends."""
    return (taps - 1) // 2, taps // 2
