"""What the search believes about candidates: features of a program, and models that rank them."""

from __future__ import annotations

from metasched.cost.model import COST_MODELS, CostModel, RandomModel


def _lightgbm(seed: int) -> CostModel:
    from metasched.cost.lightgbm import LightGBMModel

    return LightGBMModel(seed)


COST_MODELS.register("random", RandomModel)
COST_MODELS.register("lightgbm", _lightgbm)
