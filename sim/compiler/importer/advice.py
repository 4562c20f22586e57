"""Advice in error messages: what to write instead of an unsupported operation or type."""

__all__ = ["DYNAMIC", "advice_for_operation", "advice_for_type"]

_COLLECTIVES = frozenset({"collective_broadcast", "cross-replica-sum"})
DYNAMIC = frozenset({
    "dynamic_broadcast_in_dim", "dynamic_conv", "dynamic_gather", "dynamic_iota", "dynamic_pad",
    "dynamic_reshape", "real_dynamic_slice", "set_dimension_size"})
"""Operations whose results may have shapes that depend on data."""
_ADVICE = {
    "fft": "write it as a product with the matrix of the transform",
    **dict.fromkeys(("cholesky", "triangular_solve"),
                    "cast to float32, and install jax: pip install 'systolith[jax]'"),
    "rng": "use jax.random, or pass random numbers as an argument",
    "rng_bit_generator": "use jax.random with its default generator, threefry2x32",
    "custom_call": "use operations of jax.numpy and jax.lax",
    "complex": "compute with real and imaginary parts",
    "real": "compute with real and imaginary parts",
    "imag": "compute with real and imaginary parts",
    "infeed": "pass the array as an argument", "outfeed": "return the array as a result",
    "send": "return the array as a result", "recv": "pass the array as an argument",
    "uniform_quantize": "scale, round and clamp", "uniform_dequantize": "subtract and scale",
    "batch_norm_training": "write it with mean, variance and rsqrt",
    "batch_norm_inference": "write it with rsqrt",
    "batch_norm_grad": "write batch normalisation with mean, variance and rsqrt",
}


def advice_for_operation(name: str, target: str = "") -> str:
    """Return advice for an unsupported operation.

    Parameters
    ----------
    name : str
        Name of the operation; for StableHLO, without the dialect's prefix.
    target : str
        Name of the function that a custom call calls; otherwise empty.
    """
    if target == "ApproxTopK":
        return "use jax.lax.top_k"
    if target.startswith("lapack"):
        return "lower the function for a TPU, not for a CPU, whose code calls LAPACK"
    if name in _COLLECTIVES or name.startswith("sdy."):
        return "use jax.shard_map over one or two devices, with psum, all_gather or ppermute"
    if name in DYNAMIC:
        return "give all arrays static shapes"
    if target.endswith("_callback"):
        return "leave calls of the host, such as jax.debug.print, out of the function"
    return _ADVICE.get(name, "use operations of jax.numpy and jax.lax that are supported")


def advice_for_type(name: str) -> str:
    """Return advice for an unsupported element type; ``name`` is its name in MLIR."""
    if "?" in name:
        return "give all arrays static shapes"
    if name == "f64":
        return "cast to float32, or leave JAX's option jax_enable_x64 off"
    if name in ("i64", "ui64"):
        return "cast to int32 or uint32, or leave JAX's option jax_enable_x64 off"
    if name.startswith("complex"):
        return "compute with real and imaginary parts"
    if name == "f16" or name.startswith("f8"):
        return "cast to bfloat16 or float32"
    return "cast to float32, bfloat16, int32, uint32 or bool"
