"""A graph of 8 bits once more, for many tokens at once: the same weights, multiplied as float32.

Products of 8-bit weights are quick for one token. Without instructions for them (VNNI), those of many tokens
take twice as long as products of float32, however the weights are stored. So each MatMulNBits becomes the
standard DequantizeLinear and MatMul, and whoever opens the graph has ONNX Runtime dequantise all weights then
and there, or each before its product (`gptblock.runtime.session`). They stay in the file of the standard
graph, which the new file refers to; its columns are turned into rows when it is opened, for of rows
DequantizeLinear is five times as fast. What is multiplied with them is not rounded, so the logits are nearer
to fp32's.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from onnx import GraphProto, NodeProto, TensorProto

_WEIGHT, _SCALES, _BIAS = 1, 2, 5  # which input of a MatMulNBits it is
_MIDDLE = 128  # its zero point, where none is stored


def unpack(source: Path, target: Path) -> None:
    """Write the graph in `source`, which `gptblock.export.fuse` wrote, to `target`, in the same folder."""
    import onnx

    model = onnx.load(source, load_external_data=False)
    weights = {tensor.name: tensor for tensor in model.graph.initializer}
    unpacking: list[NodeProto] = []
    nodes: list[NodeProto] = []
    for node in model.graph.node:
        if node.op_type == "MatMulNBits":
            unpacking += _unpacked(model.graph, node, weights)
            nodes += _product(node)
        else:
            nodes.append(node)
    del model.graph.node[:]
    # What comes first is run last, just before its product: else all weights would be in memory at once.
    model.graph.node.extend([*unpacking, *nodes])
    onnx.save(model, target)


def _unpacked(graph: GraphProto, product: NodeProto, weights: dict[str, TensorProto]) -> Iterator[NodeProto]:
    """What makes float32 of a MatMulNBits's weights in 8 bits. Gives these the shape of a matrix."""
    from onnx import TensorProto, helper, numpy_helper

    size = {attribute.name: attribute.i for attribute in product.attribute}
    rows, columns, block = size["K"], size["N"], size["block_size"]
    blocks = -(-rows // block)
    weight, steps = product.input[_WEIGHT], product.input[_SCALES]
    name = product.output[0]

    def constant(part: str, value: np.ndarray) -> str:
        graph.initializer.append(numpy_helper.from_array(value, f"{name}.{part}"))
        return f"{name}.{part}"

    def node(operator: str, inputs: list[str], part: str, **attributes: Any) -> NodeProto:
        return helper.make_node(operator, inputs, [f"{name}.{part}"], **attributes)

    _reshape(weights[weight], TensorProto.UINT8, columns, blocks * block)
    _reshape(weights[steps], TensorProto.FLOAT, columns, blocks)
    ends = [constant(part, np.array([value])) for part, value in (("first", 0), ("end", rows), ("axis", 1))]
    yield node("Slice", [weight, *ends], "columns")  # (N, K), without what fills the last block
    yield node("Transpose", [f"{name}.columns"], "rows", perm=[1, 0])  # (K, N)
    yield node("Transpose", [steps], "scales", perm=[1, 0])  # (blocks of a column, N)
    middle = constant("middle", np.array(_MIDDLE, np.uint8))
    yield node("Expand", [middle, constant("shape", np.array([blocks, columns]))], "zeros")
    stored = [f"{name}.{part}" for part in ("rows", "scales", "zeros")]
    yield node("DequantizeLinear", stored, "weight", axis=0, block_size=block)


def _product(product: NodeProto) -> Iterator[NodeProto]:
    """What multiplies with these, in place of the MatMulNBits."""
    from onnx import helper

    name = product.output[0]
    bias = dict(enumerate(product.input)).get(_BIAS)
    factors = [product.input[0], f"{name}.weight"]
    yield helper.make_node("MatMul", factors, [f"{name}.product" if bias else name])
    if bias:
        yield helper.make_node("Add", [f"{name}.product", bias], [name])


def _reshape(tensor: TensorProto, kind: int, *shape: int) -> None:
    """The same bytes, seen otherwise."""
    tensor.data_type = kind
    del tensor.dims[:]
    tensor.dims.extend(shape)
