"""The exported graph once more, for ONNX Runtime's CPU provider: attention as one operator of its own.

The standard Attention reads its buffers to their end, and transposes them head by head first.
GroupQueryAttention, of the domain com.microsoft, writes new keys and values into them itself and reads only
the tokens that are there. The contract is that of `gptblock.export.graph` but for keys and values, which are
kept head by head:

    past_key_values.{i}.key|value   float (B, n_head, capacity, head_size)
    present.{i}.key|value           float (B, n_head, capacity, head_size)

and for one thing that it cannot do: of several rows at once, it reads chunks of one token or into an empty
cache only. A quantised product takes its bias in, and GELU by tanh is ONNX Runtime's own operator, too. The
weights stay in the file of the standard graph, which the new file refers to.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gptblock.config import ModelConfig
from gptblock.export.serialize import read_outline

if TYPE_CHECKING:
    from onnx import GraphProto, NodeProto, ValueInfoProto

_DOMAIN = "com.microsoft"
_HEAD_SIZES = 8  # the operator takes multiples of it
_BIAS_OF_PRODUCT = 5  # which input it is
_LENGTHS, _LONGEST = "fused.seqlens_k", "fused.total_sequence_length"  # its words for these inputs


def can_fuse(config: ModelConfig, precision: str) -> bool:
    """Whether there is such a graph: not of odd heads, nor of fp16, whose attention is in fp32."""
    return precision != "fp16" and config.head_size % _HEAD_SIZES == 0


def fuse(source: Path, target: Path, config: ModelConfig) -> None:
    """Write the graph in `source` to `target`, in the same folder, by these operators."""
    import onnx

    model = read_outline(source)
    graph = model.graph
    makers = {output: node for node in graph.node for output in node.output}
    attentions = [node for node in graph.node if node.op_type == "Attention"]
    caches = {name for node in attentions for name in node.input[1:3]}
    nodes: list[NodeProto] = []
    for node in graph.node:
        if node.op_type == "Attention":
            if node is attentions[0]:
                nodes += _counts(graph, node.input[6])
            nodes.append(_fused(node, makers))
        elif node.op_type == "Gelu" and _attributes(node).get("approximate") == b"tanh":
            nodes.append(onnx.helper.make_node("FastGelu", node.input, node.output, domain=_DOMAIN))
        elif node.op_type != "TensorScatter" or node.output[0] not in caches:
            nodes.append(node)
    _take_biases(nodes, {tensor.name for tensor in graph.initializer})
    read = {name for node in nodes for name in node.input} | {output.name for output in graph.output}
    del graph.node[:], graph.value_info[:]
    # Not the Split of a projection that goes into the operator as a whole.
    graph.node.extend(node for node in nodes if read & set(node.output))
    for value in (*graph.input, *graph.output):
        if value.name.startswith(("past_key_values.", "present.")):
            _by_heads(value, config)
    if _DOMAIN not in {opset.domain for opset in model.opset_import}:
        model.opset_import.add(domain=_DOMAIN, version=1)
    onnx.save(model, target)


def _counts(graph: GraphProto, length: str) -> list[NodeProto]:
    """The fused operator's idea of `length` (B,), which counts the chunk: one less, and the largest."""
    import onnx
    from onnx import numpy_helper

    graph.initializer.append(numpy_helper.from_array(np.array(1, np.int32), "fused.one"))
    make = onnx.helper.make_node
    return [
        make("Cast", [length], ["fused.length"], to=onnx.TensorProto.INT32),
        make("Sub", ["fused.length", "fused.one"], [_LENGTHS]),
        make("ReduceMax", ["fused.length"], [_LONGEST], keepdims=0),
    ]


def _fused(attention: NodeProto, makers: dict[str, NodeProto]) -> NodeProto:
    """The operator for an Attention and the two TensorScatter that write what it reads."""
    from onnx import helper

    writers = [makers[name] for name in attention.input[1:3]]
    projected = [attention.input[0], *(writer.input[1] for writer in writers)]  # q, k, v
    origin = makers[projected[0]]
    if origin.op_type == "Split" and list(origin.output) == projected:
        projected = [origin.input[0], "", ""]
    attributes = _attributes(attention)
    return helper.make_node(
        "GroupQueryAttention",
        [*projected, *(writer.input[0] for writer in writers), _LENGTHS, _LONGEST],
        [attention.output[0], *(writer.output[0] for writer in writers)],
        domain=_DOMAIN,
        num_heads=attributes["q_num_heads"],
        kv_num_heads=attributes["kv_num_heads"],
        scale=attributes["scale"],
    )


def _attributes(node: NodeProto) -> dict[str, Any]:
    from onnx import helper

    return {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}


def _take_biases(nodes: list[NodeProto], weights: set[str]) -> None:
    """Let a quantised product add its bias itself, in place of the Add after it."""
    products = {node.output[0]: node for node in nodes if node.op_type == "MatMulNBits"}
    uses = Counter(name for node in nodes for name in node.input)
    for add in [node for node in nodes if node.op_type == "Add"]:
        product = products.get(add.input[0])
        if product and add.input[1] in weights and uses[product.output[0]] == 1:
            unused = [""] * (_BIAS_OF_PRODUCT - len(product.input))  # a zero point, a group of columns
            product.input.extend([*unused, add.input[1]])
            product.output[0] = add.output[0]
            nodes.remove(add)


def _by_heads(cache: ValueInfoProto, config: ModelConfig) -> None:
    """(B, capacity, C) -> (B, n_head, capacity, head_size)."""
    batch, capacity = (size.dim_param for size in cache.type.tensor_type.shape.dim[:2])
    del cache.type.tensor_type.shape.dim[:]
    for size in (batch, config.n_head, capacity, config.head_size):
        cache.type.tensor_type.shape.dim.add(**{"dim_param" if isinstance(size, str) else "dim_value": size})
