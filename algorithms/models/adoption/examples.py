"""Examples to try a model with, of the kind that it takes."""

import torch
from torch import Tensor


def some_examples(
    count: int, shape: tuple[int, ...], vocabulary: int, drawing: torch.Generator | None = None
) -> Tensor:
    """Examples (count, \\*shape): standard normal float32; with a `vocabulary` ids, int64, from all
    over it, the first and the last among them. `drawing` is what they are drawn from, else they are
    always the same."""
    drawing = drawing or torch.Generator().manual_seed(0)
    if not vocabulary:
        return torch.randn(count, *shape, generator=drawing)
    drawn = torch.randint(vocabulary, (count, *shape), generator=drawing)
    drawn.view(-1)[0], drawn.view(-1)[-1] = 0, vocabulary - 1
    return drawn
