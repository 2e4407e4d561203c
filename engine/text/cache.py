"""A small least-recently-used map bounded by the summed weight of what it holds."""

from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class WeightedCache(Generic[K, V]):
    """Keeps values up to `limit` in total weight. One value over the limit is not kept at all."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._total = 0
        self._items: OrderedDict[K, tuple[V, int]] = OrderedDict()

    def get(self, key: K) -> V | None:
        item = self._items.get(key)
        if item is None:
            return None
        self._items.move_to_end(key)
        return item[0]

    def put(self, key: K, value: V, weight: int) -> None:
        old = self._items.pop(key, None)
        if old is not None:
            self._total -= old[1]
        if weight > self._limit:
            return
        self._items[key] = (value, weight)
        self._total += weight
        while self._total > self._limit:
            _, (_, dropped) = self._items.popitem(last=False)
            self._total -= dropped

    def __len__(self) -> int:
        return len(self._items)
