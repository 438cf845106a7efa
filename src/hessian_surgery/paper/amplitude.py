"""Amplitude control: how α_max follows each iteration (eq. 7, appendix C; γ-decay: section 7.2)."""

import math
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

Control: TypeAlias = Literal["adam", "gamma"]

# α² λ₁ of a first step. The paper's α = 0.02 gives 0.08–0.13 on our ResNet-50, and 0.22 on theirs
# (section 6.1).
FIRST_COST = 0.1


@dataclass(frozen=True)
class Signal:
    """What an iteration tells the controller.

    Attributes:
        accepted: False if it was rolled back.
        sigma_before: σ of the weights it started from.
        sigma_after: σ of the candidate, kept or not.
        max_drop: Δ_max, the largest drop of a class.
    """

    accepted: bool
    sigma_before: float
    sigma_after: float
    max_drop: float

    @property
    def improvement(self) -> float:
        """g_t (appendix C): the fall of σ, or 0; after a rollback, minus what triggered it.

        If σ rose, perhaps no class dropped. The larger of the two counts, so that a rollback never
        raises the amplitude.
        """
        if self.accepted:
            return max(0.0, self.sigma_before - self.sigma_after)
        return -max(self.max_drop, self.sigma_after - self.sigma_before)


@dataclass(frozen=True)
class AdamControl:
    """Adam moments of g_t. Their ratio, signal to noise, moves α_max between its ends (eq. 7).

    Attributes:
        initial: α_max^(0).
        horizon: T; the windows are β₁ = 1 − 4/T (at least 0) and β₂ = 1 − 1/T.
        value: α_max for the next iteration.
        first: m_t.
        second: v_t.
        time: t.
    """

    initial: float
    horizon: int
    value: float
    first: float = 0.0
    second: float = 0.0
    time: int = 0

    def update(self, signal: Signal) -> "AdamControl":
        """The controller after one more iteration."""
        beta1 = max(0.0, 1 - 4 / self.horizon)
        beta2 = 1 - 1 / self.horizon
        g = signal.improvement
        time = self.time + 1
        first = beta1 * self.first + (1 - beta1) * g
        second = beta2 * self.second + (1 - beta2) * g**2
        corrected = math.sqrt(second / (1 - beta2**time))
        ratio = first / (1 - beta1**time) / (corrected + 1e-8)
        lowest = self.initial / 20
        value = lowest + (1 + math.tanh(5 * ratio)) / 2 * (self.initial - lowest)
        return replace(self, value=value, first=first, second=second, time=time)


@dataclass(frozen=True)
class GammaControl:
    """α_max ← γ α_max after a rollback, or if smoothed σ fell by less than 0.05 pp (table 5).

    Attributes:
        value: α_max for the next iteration.
        average: exponential moving average of σ, with weight 0.3 on the newest; it starts at the
            starting model's σ.
    """

    value: float
    average: float

    def update(self, signal: Signal) -> "GammaControl":
        """The controller after one more iteration."""
        if not signal.accepted:
            return replace(self, value=0.7 * self.value)
        average = 0.7 * self.average + 0.3 * signal.sigma_after
        stalled = self.average - average < 0.0005
        return GammaControl(0.7 * self.value if stalled else self.value, average)


Controller: TypeAlias = AdamControl | GammaControl


def start_control(control: Control, amplitude: float, iterations: int, base_sigma: float) -> Controller:
    """The controller before the first iteration."""
    if control == "adam":
        return AdamControl(initial=amplitude, horizon=iterations, value=amplitude)
    return GammaControl(value=amplitude, average=base_sigma)


def curvature_amplitude(leading_eigenvalue: float) -> float:
    """α_max^(0): the step whose second-order cost α² λ₁ is the same for every model.

    Eq. 10 applies this rule from phase to phase; here it applies from model to model.
    """
    return math.sqrt(FIRST_COST / leading_eigenvalue)
