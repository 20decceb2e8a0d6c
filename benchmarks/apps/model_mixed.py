"""Input as pydantic models, output as msgspec Structs."""

from benchmarks.apps.model_pydantic import Payment
from benchmarks.apps.model_struct import Doubled, Total, total

__all__ = ["Doubled", "Payment", "Total", "doubled", "total"]


def doubled(payment: Payment) -> Doubled:
    return Doubled(payment.id, payment.account, payment.amount, payment.note, 2 * payment.amount)
