"""What the figure claims: gradient descent on a kernel that stays learns what is predicted, and width makes it stay."""

from __future__ import annotations

import matplotlib.pyplot as plt
import pytest

from studies import lazy


@pytest.mark.slow
def test_wide_networks_learn_what_is_predicted() -> None:
    narrow, wide = (lazy.learned(width, "sgd", "ntk", "relu", p=60, n=80, steps=20, seed=0) for width in (8, 256))
    assert wide["kernel"] < 0.1 < narrow["kernel"]
    # of the accuracy: the training sets of 80 rows, and 2,000 test rows, vary by two or three points
    assert abs(wide["predicted"] - wide["measured"]) < 0.06
    settings = {"optimiser": "sgd", "parametrisation": "ntk"}
    points = {str(i): {"settings": settings, "numbers": numbers} for i, numbers in enumerate((narrow, wide))}
    plt.close(lazy.draw({"points": points})[""])
