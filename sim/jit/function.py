"""`jit`: functions that are traced by JAX and compiled for a device when they are called."""

import functools
import inspect
import threading
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any, overload

from hdl.checks import instance
from hdl.config import Config
from hdl.link.format import torus_sides
from sim.compiler.graph.ir import Graph
from sim.compiler.graph.torus import Torus
from sim.compiler.importer.importer import import_stablehlo
from sim.compiler.pod import PodExecutable
from sim.compiler.program.cache import compile_pod_cached
from sim.driver.device import Device
from sim.driver.pod import Pod, with_links
from sim.jit.infeed import Infeed, Stacked, batches, stacked, to_numpy
from sim.jit.program import CompiledProgram, compile_imported

__all__ = ["JitFunction", "jit"]

_CHIP = Torus()


@overload
def jit(function: Callable[..., Any], *, device: Device | Pod | None = None,
        static_argnums: int | Sequence[int] = (),
        static_argnames: str | Sequence[str] = (), in_shardings: Any = None,
        out_shardings: Any = None) -> "JitFunction": ...


@overload
def jit(function: None = None, *, device: Device | Pod | None = None,
        static_argnums: int | Sequence[int] = (), static_argnames: str | Sequence[str] = (),
        in_shardings: Any = None, out_shardings: Any = None,
        ) -> Callable[[Callable[..., Any]], "JitFunction"]: ...


def jit(function: Callable[..., Any] | None = None, *, device: Device | Pod | None = None,
        static_argnums: int | Sequence[int] = (),
        static_argnames: str | Sequence[str] = (), in_shardings: Any = None,
        out_shardings: Any = None,
        ) -> "JitFunction | Callable[[Callable[..., Any]], JitFunction]":
    """Compile a function of arrays for a device. Needs the extra ``jax``.

    ``@systolith.jit`` and, with options, ``@systolith.jit(device=device)`` decorate a function.

    JAX traces the function once for each combination of argument shapes, argument types, and values
    of static arguments. The returned function keeps its compiled programs in memory. Compiled code
    is also cached on disk, by the content of the program.

    Parameters
    ----------
    function : callable, optional
        The function. Its arguments and results are pytrees of arrays, and it consists of operations
        of JAX. If it is not given, `jit` returns a decorator.
    device : Device or Pod, optional
        The device that runs the function, unless a call names another one. A `Pod` runs functions
        that use ``jax.shard_map`` over a mesh of all its devices (docs/links.md).
    static_argnums, static_argnames : int, str, or sequences, optional
        Positions and names of arguments that are constants of the program, as in ``jax.jit``. Their
        values must be hashable.
    in_shardings, out_shardings : pytrees of jax.sharding.NamedSharding, optional
        How arguments and results are divided between the two cores of a chip, as in ``jax.jit``;
        the cores are the devices of the mesh. Arguments that are JAX arrays may carry shardings,
        too.

    Returns
    -------
    JitFunction
        The compiled function. It has the parameters of ``function`` and the keyword ``device``, and
        returns numpy arrays in the pytree that ``function`` returns.

    Raises
    ------
    ImportError
        If JAX is not installed.
    """
    if function is None:
        return functools.partial(jit, device=device, static_argnums=static_argnums,
                                 static_argnames=static_argnames, in_shardings=in_shardings,
                                 out_shardings=out_shardings)
    shardings = {"in_shardings": in_shardings, "out_shardings": out_shardings}
    return JitFunction(function, device, static_argnums, static_argnames,
                       {name: given for name, given in shardings.items() if given is not None})


class JitFunction:
    """A function that is compiled when it is called. Made by `jit`; threads may share it."""

    def __init__(self, function: Callable[..., Any], device: Device | Pod | None,
                 static_argnums: int | Sequence[int], static_argnames: str | Sequence[str],
                 shardings: Mapping[str, Any]) -> None:
        if not callable(function):
            raise TypeError(f"function must be callable, not {function!r}")
        if device is not None and not isinstance(device, Pod):
            instance("device", device, Device)
        try:
            import jax
        except ImportError as error:
            raise ImportError("jit needs JAX: pip install 'systolith[jax]'") from error
        _hide_from_locations()
        numbers, names = _static(function, static_argnums, static_argnames)
        self._static_numbers, self._static_names = numbers, names
        self._jitted = jax.jit(function, keep_unused=True, static_argnums=tuple(sorted(numbers)),
                               static_argnames=tuple(sorted(names)), **shardings)
        self._device = device
        self._name = getattr(function, "__name__", "function")
        self._programs: dict[Any, CompiledProgram] = {}
        self._pod_programs: dict[Any, PodExecutable] = {}
        self._lock = threading.Lock()
        functools.update_wrapper(self, function, updated=())

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        """Bind the function to ``instance`` as a method, so that it receives ``self``."""
        return self if instance is None else types.MethodType(self, instance)

    def __call__(self, *arguments: Any, device: Device | Pod | None = None,
                 outfeed: Callable[[int, Any], object] | None = None, **named: Any) -> Any:
        """Run the function. For new shapes, types or static arguments, compile it first.

        Parameters
        ----------
        arguments, named
            Arguments of the function. An `Infeed` in place of an array, or of a pytree of arrays,
            provides that argument's batches while the function runs.
        device : Device or Pod, optional
            The device to run on; by default the one that was given to `jit`. On a pod, infeed and
            outfeed are not supported.
        outfeed : callable, optional
            Called as ``outfeed(n, results)`` while the function runs, for each iteration ``n``
            of a ``lax.scan``, from 0 on. ``results`` is the pytree of the function's results, with
            ``array[n]`` for each array that the scan stacks, and None for every other array.

        Returns
        -------
        pytree of numpy arrays
            The function's results.

        Raises
        ------
        TypeError
            If no device was given, either here or to `jit`; if a call on a pod has an infeed or an
            outfeed. If JAX traces the call, for example because of ``jax.grad`` of a `JitFunction`.
            If the function itself raises a TypeError.
        UnsupportedError
            If the function uses unsupported operations or types; the message lists all of them,
            with lines of the function's source. Also if a call has an infeed or an outfeed, and the
            function has no ``lax.scan`` for them. Such a scan is not inside another loop, takes its
            ``xs`` from the infeeds, and stacks the results for the outfeed.
        ValueError
            If an infeed ends before the loop, or is passed as several arguments.
        MemoryError
            If the program does not fit the chip's memories.
        """
        import jax

        chosen = self._chosen(device, (arguments, named))
        if isinstance(chosen, Pod):
            if outfeed is not None:
                raise TypeError("outfeed must be None on a pod")
            return self._on_pod(chosen, arguments, named)
        stage, program, leaves = self._stage(arguments, named, chosen.config, outfeed is not None)
        avals = jax.tree.leaves(stage.in_avals)
        fed = program.executable.queues.inputs if program.executable.queues else ()
        arrays = [to_numpy(leaf, aval) for number, (leaf, aval) in enumerate(
            zip(leaves, avals, strict=True)) if number not in fed]
        results, tree = jax.tree.flatten(stage.out_info)
        outputs = program(
            *arrays, device=chosen,
            outfeed=outfeed and (lambda step, rows: outfeed(step, jax.tree.unflatten(tree, rows))),
            infeed=batches(self._dynamic(arguments, named), [avals[n] for n in fed])
            if fed else None)
        return jax.tree.unflatten(tree, [
            _result(array, type) for array, type in zip(outputs, results, strict=True)])

    def compile(self, *arguments: Any, config: str | Config = "v2", outfeed: bool = False,
                **named: Any) -> CompiledProgram:
        """Compile the function for the shapes and types of arguments, without running it.

        Parameters
        ----------
        arguments, named
            Arguments as in a call; ``jax.ShapeDtypeStruct`` is accepted in place of arrays.
        config : str or Config
            The chip: the name of a preset, or its parameters.
        outfeed : bool
            Whether calls of the program may have an outfeed.

        Returns
        -------
        CompiledProgram
            The program. Its inputs are the leaves of the arguments that are not static, in order.

        Raises
        ------
        TypeError
            If ``config`` has another type, or the function itself raises a TypeError.
        ValueError
            If there is no such preset.
        MemoryError, UnsupportedError
            As in a call.
        """
        chip = Config.preset(config) if isinstance(config, str) else config
        instance("config", chip, Config)
        return self._stage(arguments, named, chip, outfeed)[1]

    def _stage(self, arguments: tuple[Any, ...], named: dict[str, Any], config: Config,
               outfeed: bool) -> tuple[Any, CompiledProgram, list[Any]]:
        """Trace the function for its arguments, and compile it unless a program exists for them.

        ``arguments`` are given by position, ``named`` by name. ``outfeed`` tells whether calls of
        the program may have an outfeed. Return the traced function, its program, and the leaves of
        its arguments. The leaves of an `Infeed` are `Stacked`: shapes and types, not arrays.

        The key of a program includes the arguments' shardings: calls that differ only in their
        shardings need different programs, although JAX traces them only once.
        """
        import jax

        arguments, named = stacked((arguments, named))
        stage = self._jitted.trace(*arguments, **named)
        leaves = jax.tree.leaves(self._dynamic(arguments, named))
        fed = tuple(number for number, leaf in enumerate(leaves) if isinstance(leaf, Stacked))
        key = (stage.jaxpr, config, tuple(map(_sharding, leaves)), fed, outfeed)
        with self._lock:
            if key not in self._programs:
                self._programs[key] = compile_imported(_imported(stage), config, self._name,
                                                       fed=fed, outfeed=outfeed)
            return stage, self._programs[key], leaves

    def _chosen(self, device: Device | Pod | None, arguments: Any) -> Device | Pod:
        """Return the device to run on, after a check of it and of the pytree ``arguments``.

        For a pod of one chip, this is the device of the chip.
        """
        import jax

        chosen = device if device is not None else self._device
        if chosen is None:
            raise TypeError("device must be given to jit or to the call")
        if isinstance(chosen, Pod) and chosen.shape == (1, 1):
            chosen = chosen[0, 0]
        if not isinstance(chosen, Pod):
            instance("device", chosen, Device)
        if any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(arguments)):
            raise TypeError(f"{self._name} must not be traced by JAX, because it runs on a device: "
                            f"apply jax.grad, jax.vmap and the like to the function, and "
                            f"systolith.jit to what they return")
        return chosen

    def compile_pod(self, *arguments: Any, shape: tuple[int, int], config: str | Config = "v2",
                    **named: Any) -> PodExecutable:
        """Compile the function for all cores of a pod, without a pod.

        Parameters
        ----------
        arguments, named
            Arguments as in a call on a pod; ``jax.ShapeDtypeStruct`` is accepted in place of
            arrays.
        shape : tuple of int
            Chips along X and along Y; at least two chips in all.
        config : str or Config
            Each chip: the name of a preset, or its parameters. Links are added if it has none, as
            by `Pod.open`.

        Returns
        -------
        PodExecutable
            The program. Its inputs are the leaves of the arguments that are not static, in order.

        Raises
        ------
        TypeError
            If ``shape`` or ``config`` has another type, an argument is an `Infeed`, or the function
            itself raises a TypeError.
        ValueError
            If there is no such preset, or ``shape`` has another number of chips.
        MemoryError, UnsupportedError
            As in a call.
        """
        chip = Config.preset(config) if isinstance(config, str) else config
        instance("config", chip, Config)
        torus = Torus(*torus_sides(shape))
        if torus.chips == 1:
            raise ValueError("shape must have at least two chips, not one: use compile")
        return self._pod_program(arguments, named, torus, with_links(chip))[1]

    def _pod_program(self, arguments: tuple[Any, ...], named: dict[str, Any], torus: Torus,
                     config: Config) -> tuple[Any, PodExecutable]:
        """Trace the function; compile it for a pod unless a program exists for its arguments.

        ``config`` has links. Return the traced function, and its program.
        """
        import jax

        if any(isinstance(leaf, Infeed) for leaf in jax.tree.leaves((arguments, named))):
            raise TypeError(f"on a pod, {self._name} must be given arrays, not an Infeed")
        stage = self._jitted.trace(*arguments, **named)
        key = (stage.jaxpr, config, torus)
        with self._lock:
            if key not in self._pod_programs:
                self._pod_programs[key] = compile_pod_cached(_imported(stage, torus), config,
                                                             name=self._name)
            return stage, self._pod_programs[key]

    def _on_pod(self, pod: Pod, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """Run the function on a pod; return its results. Compile it first if it is new."""
        import jax

        stage, executable = self._pod_program(arguments, named, Torus(*pod.shape), pod.config)
        leaves = jax.tree.leaves(self._dynamic(arguments, named))
        outputs = pod.execute(executable, *(
            to_numpy(leaf, aval) for leaf, aval in zip(
                leaves, jax.tree.leaves(stage.in_avals), strict=True)))
        results, tree = jax.tree.flatten(stage.out_info)
        return jax.tree.unflatten(tree, [
            _result(array, type) for array, type in zip(outputs, results, strict=True)])

    def _dynamic(self, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """Return the arguments that are not static, as the pytree that JAX flattens to leaves."""
        numbers = {number + len(arguments) if number < 0 else number
                   for number in self._static_numbers}
        return (tuple(value for number, value in enumerate(arguments) if number not in numbers),
                {name: value for name, value in named.items() if name not in self._static_names})


@functools.cache
def _hide_from_locations() -> None:
    """Make JAX skip this file in source locations, so that constants get the user's line."""
    from jax.extend import source_info_util

    source_info_util.register_exclusion(__file__)


def _imported(stage: Any, torus: Torus = _CHIP) -> Graph:
    """Lower a traced function to StableHLO, and convert it to a graph for the chips of a torus.

    JAX lowers the function as for a TPU, because it then generates random numbers by code without
    loops. If the result has unsupported operations, or lowering fails, JAX lowers as for a CPU.
    """
    try:
        module = stage.lower(lowering_platforms=("tpu",)).compiler_ir("stablehlo")
    except (NotImplementedError, ValueError):
        # JAX lowers host callbacks, such as jax.debug.print, only for platforms that are present.
        return _imported_for_cpu(stage, torus)
    try:
        return import_stablehlo(module, torus)
    except NotImplementedError as error:
        try:
            return _imported_for_cpu(stage, torus)
        except NotImplementedError:
            raise error from None


def _imported_for_cpu(stage: Any, torus: Torus) -> Graph:
    module = stage.lower(lowering_platforms=("cpu",)).compiler_ir("stablehlo")
    return import_stablehlo(module, torus)


def _static(function: Callable[..., Any], numbers: int | Sequence[int], names: str | Sequence[str],
            ) -> tuple[set[int], set[str]]:
    """Return positions and names of all static arguments.

    ``numbers`` and ``names`` are ``static_argnums`` and ``static_argnames`` of `jit`. An argument
    in ``numbers`` is also added to the names and vice versa, since a call may pass it either way.
    """
    all_numbers = {numbers} if isinstance(numbers, int) else set(numbers)
    all_names = {names} if isinstance(names, str) else set(names)
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return all_numbers, all_names
    positional = [parameter.name for parameter in parameters
                  if parameter.kind in (parameter.POSITIONAL_ONLY,
                                        parameter.POSITIONAL_OR_KEYWORD)]
    found = {number for number, name in enumerate(positional) if name in all_names}
    all_names |= {positional[number] for number in all_numbers
                  if -len(positional) <= number < len(positional)}
    return all_numbers | found, all_names


def _sharding(leaf: Any) -> Any:
    """Return the NamedSharding of a JAX array; None for other values."""
    import jax

    sharding = getattr(leaf, "sharding", None)
    return sharding if isinstance(sharding, jax.sharding.NamedSharding) else None


def _result(array: Any, type: Any) -> Any:
    """Convert an output to a result: a JAX random key if ``type`` is one, else the array itself."""
    import jax

    if jax.dtypes.issubdtype(type.dtype, jax.dtypes.prng_key):
        return jax.random.wrap_key_data(array, impl=type.dtype._impl.name)
    return array
