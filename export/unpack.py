"""A quantised graph once more, for batches: the same weights, multiplied as float32.

Products of 8-bit weights are quick for one row. Without instructions for them (VNNI), those of many rows
take twice as long as products of float32, however the weights are stored. So each MatMulNBits becomes the
standard DequantizeLinear and MatMul, and whoever opens the graph has ONNX Runtime dequantise all weights then
and there (`session.disable_quant_qdq`). They stay in the file of the standard graph, which the new file
refers to. What is multiplied with them is not rounded, so the logits are nearer to fp32's.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gptblock.export.quantize import halves

if TYPE_CHECKING:
    from onnx import GraphProto, NodeProto, TensorProto

_WEIGHT, _SCALES, _ZEROS, _BIAS = 1, 2, 3, 5  # which input of a MatMulNBits it is
_MIDDLE = 128  # the zero point of 8 bits where none is stored


def unpack(source: Path, target: Path) -> None:
    """Write the graph in `source`, which `gptblock.export.fuse` wrote, to `target`, in the same folder."""
    import onnx

    model = onnx.load(source, load_external_data=False)
    weights = {tensor.name: tensor for tensor in model.graph.initializer}
    nodes: list[NodeProto] = []
    for node in model.graph.node:
        if node.op_type == "MatMulNBits":
            nodes += _unpacked(model.graph, node, weights, source.parent)
        else:
            nodes.append(node)
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    onnx.save(model, target)


def _unpacked(
    graph: GraphProto, product: NodeProto, weights: dict[str, TensorProto], folder: Path
) -> Iterator[NodeProto]:
    """What computes the same as a MatMulNBits. Gives its weights the shape that DequantizeLinear reads."""
    from onnx import TensorProto, helper, numpy_helper

    size = {attribute.name: attribute.i for attribute in product.attribute}
    rows, columns, block = size["K"], size["N"], size["block_size"]
    blocks = -(-rows // block)
    kind = {8: TensorProto.UINT8, 4: TensorProto.UINT4}[size["bits"]]
    inputs = dict(enumerate(product.input))
    name = product.output[0]

    def constant(part: str, kind: int, array: np.ndarray) -> str:
        array = array.astype(helper.tensor_dtype_to_np_dtype(kind))
        graph.initializer.append(numpy_helper.from_array(array, f"{name}.{part}"))
        return f"{name}.{part}"

    def node(operator: str, inputs: list[str], part: str, **attributes: Any) -> NodeProto:
        return helper.make_node(operator, inputs, [f"{name}.{part}" if part else name], **attributes)

    _reshape(weights[inputs[_WEIGHT]], kind, columns, blocks * block)
    _reshape(weights[inputs[_SCALES]], TensorProto.FLOAT, columns, blocks)
    if inputs.get(_ZEROS):
        packed = numpy_helper.to_array(weights[inputs[_ZEROS]], str(folder)).reshape(columns, -1)
        graph.initializer.remove(weights[inputs[_ZEROS]])
        constant("zeros", kind, halves(packed)[:, :blocks])
    else:
        middle = constant("middle", kind, np.array(_MIDDLE, np.uint8))
        shape = constant("shape", TensorProto.INT64, np.array([columns, blocks]))
        yield node("Expand", [middle, shape], "zeros")
    stored = [inputs[_WEIGHT], inputs[_SCALES], f"{name}.zeros"]
    yield node("DequantizeLinear", stored, "padded", axis=1, block_size=block)  # (N, blocks of a column)
    first, end, axis = (
        constant(part, TensorProto.INT64, np.array([value]))
        for part, value in (("first", 0), ("end", rows), ("axis", 1))
    )
    yield node("Slice", [f"{name}.padded", first, end, axis], "columns")  # (N, K)
    yield node("Transpose", [f"{name}.columns"], "weight", perm=[1, 0])
    bias = inputs.get(_BIAS)
    yield node("MatMul", [inputs[0], f"{name}.weight"], "product" if bias else "")
    if bias:
        yield node("Add", [f"{name}.product", bias], "")


def _reshape(tensor: TensorProto, kind: int, *shape: int) -> None:
    """The same bytes, seen otherwise."""
    tensor.data_type = kind
    del tensor.dims[:]
    tensor.dims.extend(shape)
