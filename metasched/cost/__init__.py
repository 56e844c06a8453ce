"""Cost models: features of a program, and models that rank candidates by them."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from metasched.codegen.openmp import REMEDY, openmp_runtime
from metasched.cost.line import LineModel, LineRegression, Regressor
from metasched.cost.model import COST_MODELS, CostModel, RandomModel
from metasched.errors import MetaschedError, warn, words


@functools.cache
def lightgbm_lack() -> str:
    """Why LightGBM cannot be used here, with the remedy; empty if it can be used."""
    openmp_runtime()  # LightGBM needs libgomp; once loaded, a package's copy of libgomp serves
    try:
        import metasched.cost.lightgbm  # noqa: F401
    except ImportError as error:
        return f"LightGBM cannot be imported ({words(error)}); `pip install lightgbm`"
    except AttributeError as error:  # it works on docstrings
        return f"LightGBM cannot be imported ({words(error)}); run Python without -OO"
    except OSError as error:
        remedy = REMEDY if "libgomp" in str(error) else "install it anew"
        return f"LightGBM cannot be loaded ({words(error)}); {remedy}"
    return ""


def boosting() -> Any:
    """The module that trains with LightGBM; raises MetaschedError, which says what to install."""
    lack = lightgbm_lack()
    if lack:
        raise MetaschedError(f"a prior is trained with LightGBM: {lack}")
    from metasched.cost import lightgbm

    return lightgbm


def regression(rows: np.ndarray, targets: np.ndarray) -> Regressor:
    """Fit a regression of targets on rows: a line and trees, or only a line without LightGBM."""
    if lightgbm_lack():
        return LineRegression(rows, targets)
    from metasched.cost.lightgbm import Regression

    return Regression(rows, targets)


def _lightgbm(seed: int) -> CostModel:
    """The model of trees; if LightGBM cannot be loaded, the model of a line, with a warning."""
    lack = lightgbm_lack()
    if lack:
        kernels = "" if openmp_runtime() else ", and parallel loops run serially"
        warn(
            f"the search learns by a line instead of trees, which needs more trials{kernels}: "
            f"{lack}"
        )
        return LineModel(seed)
    from metasched.cost.lightgbm import LightGBMModel

    return LightGBMModel(seed)


COST_MODELS.register("random", RandomModel)
COST_MODELS.register("line", LineModel)
COST_MODELS.register("lightgbm", _lightgbm)
