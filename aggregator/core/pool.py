"""Persistent set of devices from which any rank can be read in logarithmic time.

Devices are ordered by the hash of their ids, so that a pool depends on its devices alone and not on
the order of their arrival: two services with the same devices draw the same ones.
"""

import hashlib
from collections.abc import Iterable, Iterator
from typing import final

WIDTH = 16
"""Number of children of a node, and maximum number of devices of a leaf."""
Key = tuple[bytes, str]
Leaf = tuple[Key, ...]


@final
class _Node:
    """Inner node of the tree: its children by the next half byte of the hash."""

    __slots__ = ("children", "size")

    def __init__(self, children: "tuple[_Node | Leaf, ...]", size: int) -> None:
        self.children, self.size = children, size


Tree = _Node | Leaf


class DevicePool:
    """Set of devices, ordered by the hash of their ids."""

    __slots__ = ("_tree",)

    def __init__(self, device_ids: Iterable[str] = (), _tree: Tree | None = None) -> None:
        self._tree: Tree = () if _tree is None else _tree
        if _tree is None:
            keys = sorted(map(_key, device_ids))
            self._tree = _built(keys, 0)

    def __len__(self) -> int:
        return _size(self._tree)

    def __iter__(self) -> Iterator[str]:
        return (device_id for _, device_id in _walk(self._tree))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, DevicePool) and list(self) == list(other)

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __contains__(self, device_id: str) -> bool:
        tree, key, depth = self._tree, _key(device_id), 0
        while isinstance(tree, _Node):
            tree, depth = tree.children[_digit(key, depth)], depth + 1
        return key in tree

    def __getitem__(self, rank: int) -> str:
        """Return the device of this rank, counted from 0."""
        tree = self._tree
        while type(tree) is _Node:
            for child in tree.children:
                size = child.size if type(child) is _Node else len(child)
                if rank < size:
                    tree = child
                    break
                rank -= size
            else:
                raise IndexError(rank)
        return tree[rank][1]

    def rank(self, device_id: str) -> int:
        """Return the number of devices that come before this one, which need not be in the pool."""
        tree, key, depth, before = self._tree, _key(device_id), 0, 0
        while isinstance(tree, _Node):
            digit = _digit(key, depth)
            before += sum(map(_size, tree.children[:digit]))
            tree, depth = tree.children[digit], depth + 1
        return before + sum(other < key for other in tree)

    def with_device(self, device_id: str) -> "DevicePool":
        """Return the pool with this device."""
        return DevicePool(_tree=_added(self._tree, _key(device_id), 0))

    def without(self, device_id: str) -> "DevicePool":
        """Return the pool without this device."""
        return DevicePool(_tree=_removed(self._tree, _key(device_id), 0))


def draw(seed: str, count: int) -> int:
    """Return a number from 0 to below `count` that depends on the seed alone."""
    return int.from_bytes(hashlib.sha256(seed.encode()).digest()[:8]) % count


def _key(device_id: str) -> Key:
    return hashlib.blake2b(device_id.encode(), digest_size=8).digest(), device_id


def _digit(key: Key, depth: int) -> int:
    byte = key[0][depth >> 1]
    return byte & 15 if depth & 1 else byte >> 4


def _size(tree: Tree) -> int:
    return tree.size if isinstance(tree, _Node) else len(tree)


def _walk(tree: Tree) -> Iterator[Key]:
    if isinstance(tree, _Node):
        for child in tree.children:
            yield from _walk(child)
    else:
        yield from tree


def _built(keys: "list[Key] | Leaf", depth: int) -> Tree:
    """Return the tree of these keys, which are sorted."""
    if len(keys) <= WIDTH or depth >= 2 * len(keys[0][0]):
        return tuple(keys)
    parts: list[list[Key]] = [[] for _ in range(WIDTH)]
    place, shift = depth >> 1, 0 if depth & 1 else 4
    for key in keys:
        # inlines `_digit`, which would be called for each key
        parts[key[0][place] >> shift & 15].append(key)
    return _Node(tuple(_built(part, depth + 1) for part in parts), len(keys))


def _added(tree: Tree, key: Key, depth: int) -> Tree:
    if isinstance(tree, _Node):
        digit = _digit(key, depth)
        child = tree.children[digit]
        after = _added(child, key, depth + 1)
        return tree if after is child else _with_child(tree, digit, after, tree.size + 1)
    return tree if key in tree else _built(sorted((*tree, key)), depth)


def _removed(tree: Tree, key: Key, depth: int) -> Tree:
    if isinstance(tree, _Node):
        digit = _digit(key, depth)
        child = tree.children[digit]
        after = _removed(child, key, depth + 1)
        if after is child:
            return tree
        node = _with_child(tree, digit, after, tree.size - 1)
        return tuple(_walk(node)) if node.size <= WIDTH else node
    return tuple(other for other in tree if other != key) if key in tree else tree


def _with_child(node: _Node, digit: int, child: Tree, size: int) -> _Node:
    children = list(node.children)
    children[digit] = child
    return _Node(tuple(children), size)
