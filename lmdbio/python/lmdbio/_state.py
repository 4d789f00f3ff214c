"""The states that loaders save and resume from."""
from typing import Any, Dict, Tuple

from ._plan import Plan


def state_of(plan: Plan, epoch: int, records: int) -> Dict[str, Any]:
    """Returns the state_dict of a loader that has returned `records` samples of an epoch."""
    if plan.length and records >= plan.length:
        epoch, records = epoch + 1, 0
    return {"epoch": epoch, "records": records, "seed": plan.seed, "count": plan.count, "ranks": plan.ranks,
            "batch_size": plan.batch, "shuffle": plan.shuffle, "window": plan.window, "last": plan.last}


def position_in(state: Dict[str, Any], plan: Plan) -> Tuple[int, int]:
    """Returns the epoch and the number of samples of a state_dict.

    Raises ValueError if its order differs from that of `plan`.
    """
    now_of = state_of(plan, 0, 0)
    missing = [name for name in now_of if name not in state]
    if missing:
        raise ValueError(f"not a state of state_dict(), or of a loader with a sampler: there is no {missing[0]!r} in it")
    for name in ("count", "ranks", "shuffle", "window", "seed", "last", "batch_size"):
        if state[name] != now_of[name] and (name != "batch_size" or plan.ranks > 1):
            raise ValueError(f"the state was saved with {name}={state[name]}; now it is {now_of[name]}")
    epoch, records = state["epoch"], state["records"]
    if not 0 <= records <= plan.length:
        raise ValueError(f"the state is at record {records} of an epoch of {plan.length}")
    return (epoch, records) if records < plan.length else (epoch + 1, 0)
