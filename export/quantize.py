"""The fp32 graph with its matrices in 8 or 4 bits, rounded block by block and calibrated on nothing.

The weights alone are stored so. What they are multiplied with is rounded to 8 bits while the graph runs, each
token by itself and block by block: one scale for all, as in ONNX Runtime's dynamic quantisation, would let a
later token change the logits of earlier ones.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gptblock.bundle.manifest import Check, ModelMetadata

if TYPE_CHECKING:
    from onnx import GraphProto, NodeProto, TensorProto

_SCALE = 4  # bytes of a block's scale
_SMALLEST_BLOCK = 16  # that ONNX Runtime's kernels take
_ACCURACY_LEVEL = 4  # the kernels that multiply integers: the fastest, and what a product of 8 bits may cost


@dataclass(frozen=True)
class _Scheme:
    """How numbers are stored: bits each, and at most so many of a column under one scale."""

    bits: int
    largest_block: int
    is_symmetric: bool  # no zero point: at 8 bits as exact without one, at 4 bits not

    def bytes(self, rows: int, block: int) -> int:
        """What a column of `rows` numbers takes, padded to whole blocks."""
        return -(-rows // block) * (block * self.bits // 8 + _SCALE)

    def block(self, rows: int) -> int | None:
        """The block size in which a column takes least, the larger of two; None where fp32 takes less."""
        sizes = [self.largest_block]
        while sizes[-1] > _SMALLEST_BLOCK:
            sizes.append(sizes[-1] // 2)
        best = min(sizes, key=lambda size: self.bytes(rows, size))
        return best if self.bytes(rows, best) < 4 * rows else None


_SCHEMES = {
    "int8": _Scheme(bits=8, largest_block=128, is_symmetric=True),
    "int4": _Scheme(bits=4, largest_block=32, is_symmetric=False),
}


def quantize(source: Path, target: Path, metadata: ModelMetadata) -> None:
    """Write the fp32 graph in `source` to `target`, in `metadata.precision` ("int8" or "int4").

    Every matrix that a MatMul reads becomes a MatMulNBits of the domain com.microsoft, a head tied to the
    embedding among them; one too small to gain stays as it is. Embeddings, biases, norms and the cache stay
    in fp32.
    """
    import onnx

    scheme = _SCHEMES[metadata.precision]
    with _silent_import():
        from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer
    model = onnx.load(source)
    _fold_transposes(model.graph)
    blocks = dict(_blocks(model.graph, scheme))
    for block in set(blocks.values()) - {None}:
        quantizer = MatMulNBitsQuantizer(
            model,
            bits=scheme.bits,
            block_size=block,
            is_symmetric=scheme.is_symmetric,
            accuracy_level=_ACCURACY_LEVEL,
            nodes_to_exclude=[name for name, size in blocks.items() if size != block],
        )
        quantizer.process()
        model = quantizer.model.model
    onnx.helper.set_model_props(model, metadata.to_metadata())
    onnx.save(model, target)


def check_rounding(source: Path, target: Path) -> list[Check]:
    """Whether `target` is the graph in `source` with its weights rounded, and nothing else.

    The logits alone would not tell: at 4 bits much passes for rounding. Weights are compared in steps of
    their blocks: rounding takes half a step, and at the ends of a block's range up to one.
    """
    import onnx
    from onnx import numpy_helper

    before, after = onnx.load(source).graph, onnx.load(target).graph
    _fold_transposes(before)
    nodes = {node.output[0]: node for node in before.node}
    exact, stored = (
        {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
        for graph in (before, after)
    )
    differing, weights, furthest = abs(len(before.node) - len(after.node)), 0, 0.0
    for node in after.node:
        origin = nodes.get(node.output[0])
        if origin is None or node.op_type != "MatMulNBits":
            same = node == origin and all(
                np.array_equal(stored[name], exact[name]) for name in node.input if name in stored
            )
        elif same := (origin.op_type, origin.input[0]) == ("MatMul", node.input[0]):
            off = _steps_off(node, stored, exact[origin.input[1]])
            weights, furthest = weights + off.size, float(np.max([furthest, off.max()]))
        differing += not same
    return [
        Check("graph: operators unlike those in fp32", len(after.node), float(differing), 0.0),
        Check("weights: steps from the exact ones", weights, furthest, 1.001),
    ]


def _steps_off(node: NodeProto, stored: dict[str, NDArray[Any]], exact: NDArray[Any]) -> NDArray[Any]:
    """How far each number that a MatMulNBits multiplies with is from that of `exact` (K, N), in its steps."""
    restored, steps = _restored(node, stored)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(restored == exact, 0.0, np.abs(restored - exact) / steps)


def _restored(node: NodeProto, weights: dict[str, NDArray[Any]]) -> tuple[NDArray[Any], NDArray[Any]]:
    """The matrix (K, N) that a MatMulNBits multiplies with, and the step of each number."""
    attributes = {attribute.name: attribute.i for attribute in node.attribute}
    stored, scales = weights[node.input[1]], weights[node.input[2]]  # (N, blocks, bytes), (N, blocks)
    named = dict(enumerate(node.input)).get(3)
    zeros = weights[named] if named else np.full(scales.shape, 128, np.uint8)
    if attributes["bits"] == 4:
        stored, zeros = _halves(stored), _halves(zeros)
    zeros = zeros.reshape(len(scales), -1)[:, : scales.shape[1], None].astype(np.float32)  # (N, blocks, 1)
    columns = (stored.astype(np.float32) - zeros) * scales[..., None]  # (N, blocks, block)
    steps = np.broadcast_to(np.abs(scales[..., None]), columns.shape)
    columns, steps = (each.reshape(len(scales), -1)[:, : attributes["K"]].T for each in (columns, steps))
    return columns, steps


def _halves(packed: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """The numbers of 4 bits in bytes (..., N), the lower half of each first: (..., 2 N)."""
    return np.stack([packed & 15, packed >> 4], axis=-1).reshape(*packed.shape[:-1], -1)


def _blocks(graph: GraphProto, scheme: _Scheme) -> Iterator[tuple[str, int | None]]:
    """Each MatMul by a weight, and the size of its blocks."""
    weights = {tensor.name: tensor for tensor in graph.initializer}
    for node in graph.node:
        if node.op_type == "MatMul" and node.input[1] in weights:
            yield node.name, scheme.block(weights[node.input[1]].dims[0])


def _fold_transposes(graph: GraphProto) -> None:
    """Store what a node would transpose as it is read: a tied head, which reads the embedding so."""
    from onnx import numpy_helper

    weights: dict[str, TensorProto] = {tensor.name: tensor for tensor in graph.initializer}
    for node in [node for node in graph.node if node.op_type == "Transpose" and node.input[0] in weights]:
        matrix = numpy_helper.to_array(weights[node.input[0]]).transpose(*node.attribute[0].ints)
        graph.initializer.append(numpy_helper.from_array(matrix.copy(), node.output[0]))
        graph.node.remove(node)


@contextlib.contextmanager
def _silent_import() -> Iterator[None]:
    """Importing the quantizer sets up the root logger to print everything, unless it has a handler."""
    handler = logging.NullHandler()
    logging.getLogger().addHandler(handler)
    try:
        yield
    finally:
        logging.getLogger().removeHandler(handler)
