"""Pickles without pickle: a reader that can build plain values and uint8 arrays, and cannot run anything.

Python's own unpickler calls whatever a file names. This one has no such instruction: a name outside a list of five is an
error, and those five only ever mean "a numpy array of bytes" or "bytes".
"""

import pickletools
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .errors import DAMAGE, DataError

NAMES = {
    ("numpy.core.multiarray", "_reconstruct"): "array",
    ("numpy._core.multiarray", "_reconstruct"): "array",
    ("numpy", "ndarray"): "ndarray",
    ("numpy", "dtype"): "dtype",
    ("_codecs", "encode"): "encode",  # how Python 3 writes bytes in protocol 2,
    ("__builtin__", "bytes"): "empty",  # and how it writes no bytes
}
LITERALS = {
    "BININT BININT1 BININT2 INT LONG LONG1": int,
    "BINUNICODE SHORT_BINUNICODE BINUNICODE8 UNICODE": str,
    "BINBYTES SHORT_BINBYTES BINBYTES8": bytes,
}
KINDS = {op: kind for ops, kind in LITERALS.items() for op in ops.split()}
CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
PY2_STRINGS = {"STRING", "BINSTRING", "SHORT_BINSTRING"}  # text or bytes: nobody can tell, so bytes
MARK = object()


@dataclass
class _Name:
    """One of the five permitted names."""

    means: str


@dataclass
class _Dtype:
    """The dtype uint8; nothing else is built."""


@dataclass
class _Array:
    """An array before its state arrives; `value` afterwards."""

    value: np.ndarray | None = None


@dataclass
class _Machine:
    stack: list[Any] = field(default_factory=list)
    memo: dict[int, Any] = field(default_factory=dict)

    def since_mark(self) -> list[Any]:
        at = len(self.stack) - 1 - self.stack[::-1].index(MARK)
        items = self.stack[at + 1 :]
        del self.stack[at:]
        return items


def read_pickle(raw: bytes, file: str = "pickle") -> Any:
    """The dict, list, tuple, bytes, str, int or uint8 array a pickle holds; anything else in it is refused.

    Example:
        >>> import pickle
        >>> read_pickle(pickle.dumps({b"labels": [1, 2], "name": "x"}))
        {b'labels': [1, 2], 'name': 'x'}
        >>> read_pickle(pickle.dumps(print))
        Traceback (most recent call last):
        ...
        sparring.lab.data.errors.DataError: pickle: refused, because it names builtins.print; only plain values and uint8 \
arrays are read

    Args:
        raw: The unpacked bytes.
        file: Name for messages.
    """
    machine = _Machine()
    try:
        for opcode, argument, _ in pickletools.genops(raw):
            if opcode.name == "STOP":
                (value,) = machine.stack
                return _finished(value)
            _step(machine, opcode.name, argument)
    except DataError as error:
        raise DataError(error.reason, file) from error
    except (*DAMAGE, AttributeError) as error:
        raise DataError(f"damaged or cut short ({error})", file) from error
    raise DataError("damaged or cut short (no end mark)", file)


def _finished(value: Any) -> Any:
    """Replace array stand-ins by their arrays, wherever the reader may have put them, without recursion."""
    if isinstance(value, _Array):
        return _array(value)
    seen: set[int] = set()
    todo = [value]
    while todo:
        item = todo.pop()
        if id(item) in seen:
            continue
        seen.add(id(item))
        if isinstance(item, _Name | _Dtype | _Array):
            raise DataError("refused, because it holds a bare name where a value belongs")
        if isinstance(item, dict):
            for key, child in item.items():
                if isinstance(child, _Array):
                    item[key] = _array(child)
            todo += [child for child in item.values() if not isinstance(child, np.ndarray)]
        elif isinstance(item, list | tuple):
            todo += item
    return value


def _array(item: _Array) -> np.ndarray:
    if item.value is None:
        raise DataError("damaged: an array without values")
    return item.value


def _step(machine: _Machine, name: str, argument: Any) -> None:
    """One instruction. The stack holds values only; nothing here calls what a file names."""
    if name in ("PROTO", "FRAME"):
        return
    if not (_value(machine, name, argument) or _container(machine, name) or _object(machine, name, argument)):
        raise DataError(f"refused, because it uses the pickle instruction {name}; only plain values are read")


def _value(machine: _Machine, name: str, argument: Any) -> bool:
    """Instructions that put a value on the stack, or keep it for later; False for any other."""
    stack, memo = machine.stack, machine.memo
    if name in KINDS:
        if KINDS[name] is int and not -(1 << 63) <= argument < 1 << 63:
            raise DataError("refused, because it holds an integer of more than 64 bits")
        stack.append(argument)
    elif name in CONSTANTS:
        stack.append(CONSTANTS[name])
    elif name in PY2_STRINGS:
        stack.append(argument.encode("latin-1"))
    elif name in ("EMPTY_DICT", "EMPTY_LIST", "EMPTY_TUPLE"):
        stack.append({"D": dict, "L": list, "T": tuple}[name[6]]())
    elif name == "MARK":
        stack.append(MARK)
    elif name in ("PUT", "BINPUT", "LONG_BINPUT"):
        memo[argument] = stack[-1]
    elif name == "MEMOIZE":
        memo[len(memo)] = stack[-1]
    elif name in ("GET", "BINGET", "LONG_BINGET"):
        stack.append(memo[argument])
    else:
        return False
    return True


def _container(machine: _Machine, name: str) -> bool:
    """Instructions that make or fill a tuple, list or dict; False for any other."""
    stack = machine.stack
    if name in ("TUPLE1", "TUPLE2", "TUPLE3"):
        count = int(name[-1])
        stack[-count:] = [tuple(stack[-count:])]
    elif name in ("TUPLE", "LIST"):
        items = machine.since_mark()
        stack.append(tuple(items) if name == "TUPLE" else items)
    elif name == "DICT":
        items = machine.since_mark()
        stack.append(_pairs(items))
    elif name in ("APPEND", "APPENDS"):
        items = machine.since_mark() if name == "APPENDS" else [stack.pop()]
        _expect(stack[-1], list).extend(items)
    elif name in ("SETITEM", "SETITEMS"):
        items = machine.since_mark() if name == "SETITEMS" else [stack.pop(), stack.pop()][::-1]
        _expect(stack[-1], dict).update(_pairs(items))
    else:
        return False
    return True


def _object(machine: _Machine, name: str, argument: Any) -> bool:
    """Instructions that name something and build it; False for any other."""
    stack = machine.stack
    if name == "GLOBAL":
        stack.append(_name(*argument.split(" ", 1)))
    elif name == "STACK_GLOBAL":
        what, module = stack.pop(), stack.pop()
        stack.append(_name(module, what))
    elif name == "REDUCE":
        arguments, callee = stack.pop(), stack.pop()
        stack.append(_made(_expect(callee, _Name).means, _expect(arguments, tuple)))
    elif name == "BUILD":
        state = stack.pop()
        if isinstance(stack[-1], _Array):
            stack[-1].value = _filled(state)
        else:
            _expect(stack[-1], _Dtype)  # uint8 has one byte: its byte-order state changes nothing
    else:
        return False
    return True


def _pairs(items: list[Any]) -> dict[Any, Any]:
    for key in items[::2]:
        if type(key) not in (str, bytes, int):  # hashing a tuple nested a million deep would overflow the C stack
            raise DataError(f"refused, because it holds a dict with a {type(key).__name__} as a key")
    return dict(zip(items[::2], items[1::2], strict=True))


def _expect(value: Any, kind: Any) -> Any:
    if not isinstance(value, kind):
        raise DataError(f"damaged: {type(value).__name__} where {kind.__name__.strip('_').lower()} belongs")
    return value


def _name(module: str, what: str) -> _Name:
    if (module, what) not in NAMES:
        raise DataError(f"refused, because it names {module}.{what}; only plain values and uint8 arrays are read")
    return _Name(NAMES[module, what])


def _made(means: str, arguments: tuple[Any, ...]) -> Any:
    if means == "array":
        return _Array()
    if means == "dtype" and arguments and arguments[0] in ("u1", b"u1", "|u1", b"|u1"):
        return _Dtype()
    if means == "empty" and not arguments:
        return b""
    if means == "encode" and len(arguments) == 2 and arguments[1] in ("latin1", b"latin1"):
        return _expect(arguments[0], str).encode("latin-1")
    raise DataError(f"refused, because it makes a {means} that is not of uint8; only uint8 arrays are read")


def _filled(state: Any) -> np.ndarray:
    _, shape, dtype, fortran, raw = _expect(state, tuple)
    _expect(dtype, _Dtype)
    sides = [_expect(side, int) for side in _expect(shape, tuple)]
    count = 1
    for side in sides:
        count *= side
    if min(sides, default=0) < 0 or count != len(_expect(raw, bytes)):
        raise DataError(f"damaged: {len(raw):,} bytes for an array of shape {shape}")
    return np.frombuffer(raw, np.uint8).reshape(sides, order="F" if fortran else "C")
