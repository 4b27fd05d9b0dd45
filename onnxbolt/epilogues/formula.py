"""Formulas of one variable, by which activations are recognized that models compose of several
nodes.

    X * apply("Sigmoid", X)
    X * apply("Clip", X + 3, 0, 6) * (1 / 6)

A formula stands for all of its arrangements: factors and summands in any order and association, a
factor as a divisor, a power as a product. canonicalize/formulas.py compares graphs with them.
"""

from __future__ import annotations

from dataclasses import dataclass


class Formula:
    """X, a product, a sum, or an operator's result."""

    def __mul__(self, other: Formula | float) -> Formula:
        left, right = _as_product(self), _as_product(other)
        return Product(left.coefficient * right.coefficient, left.factors + right.factors)

    __rmul__ = __mul__

    def __pow__(self, power: int) -> Formula:
        return Product(1.0, (self,) * power)

    def __add__(self, other: Formula | float) -> Formula:
        return Sum(self, other if isinstance(other, Formula) else float(other))

    __radd__ = __add__


@dataclass(frozen=True)
class Argument(Formula):
    """The variable."""


@dataclass(frozen=True)
class Product(Formula):
    """coefficient * factors[0] * factors[1] * .."""

    coefficient: float
    factors: tuple[Formula, ...]


@dataclass(frozen=True)
class Sum(Formula):
    """left + right"""

    left: Formula
    right: Formula | float


@dataclass(frozen=True)
class Applied(Formula):
    """An operator of one tensor, a standard one unless a formula as a whole is one of `domain`;
    `constants` are its further inputs.

    Whole numbers have to be equal, others may be rounded: no type rounds small whole numbers.
    """

    op: str
    argument: Formula
    constants: tuple[float, ...] = ()
    attributes: tuple[tuple[str, float | str], ...] = ()
    domain: str = ""


X = Argument()


def apply(
    op: str, argument: Formula, *constants: float, domain: str = "", **attributes: float | str
) -> Applied:
    """The operator `op` applied to `argument`. Attributes that are not given may have any value."""
    return Applied(op, argument, constants, tuple(attributes.items()), domain)


def _as_product(value: Formula | float) -> Product:
    if not isinstance(value, Formula):
        return Product(float(value), ())
    return value if isinstance(value, Product) else Product(1.0, (value,))
