"""Fusions of TensorRT, one file for what a group's main kernel is: convolutions, products, rows, attention, copies,
and chains of element-wise operators.

Sources: NVIDIA TensorRT Developer Guide, "Layer Fusion" (types of fusions, PointWise fusion, multi-head attention
fusion), and the layers of ten public engines (``benchmarks/tensorrt_layers.py``). What the guide leaves open is said
in ``docs/decisions/lowering.md`` as an assumption.
"""
