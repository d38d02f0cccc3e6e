"""A simulated CUDA device: tensors whose numbers the host cannot reach.

They lie on the CPU after all and come from its generator, so that a run on this device equals one
on the CPU. What a GPU refuses is refused: NumPy, operands on both sides, a graph in which the host
waits, a copy that is read before it has arrived. Where the host waits elsewhere is written down. A
graph repeats the operations that it has recorded, with the numbers of then. Not simulated: kernels
and their rounding, streams, compiling, autocast.
"""

import sys
import sysconfig
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

import tensordict.nn
import torch
import torch.distributed as dist
from torch.overrides import TorchFunctionMode
from torch.utils import _device
from torch.utils._mode_utils import no_dispatch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

CUDA, META = torch.device("cuda", 0), torch.device("meta")
LIBRARIES = tuple(sysconfig.get_paths().values())
aten = torch.ops.aten
INDEX = {aten.index, aten.index_put, aten.index_put_, aten._index_put_impl_, aten._unsafe_index}
# a GPU's host needs their result, or the size of it
READ = {aten._local_scalar_dense, aten.equal, aten.nonzero, aten.masked_select}
READ |= {aten._unique2, aten.unique_dim, aten.unique_consecutive, aten.bincount}
READ |= {aten.repeat_interleave, aten.allclose}
# whether a solver has failed; what ends with _ex leaves that on the device
READ |= {aten._linalg_check_errors, aten._linalg_eigh, aten.linalg_eig}
READ |= {aten._linalg_svd, aten.linalg_pinv, aten.linalg_lstsq}
# read without an operation
SEEN = {torch.Tensor.numpy, torch.Tensor.tolist}


class OnDevice(torch.Tensor):
    """A tensor on the device. To PyTorch its wrapper lies on meta, which needs no CUDA."""

    device, is_cuda, is_cpu, is_meta = CUDA, True, False, False

    @staticmethod
    def __new__(cls, data):
        options = {"dtype": data.dtype, "layout": data.layout, "device": "meta"}
        options |= {"strides": data.stride(), "storage_offset": data.storage_offset()}
        tensor = torch.Tensor._make_wrapper_subclass(cls, data.size(), **options)
        tensor.data_on_device = data
        return tensor

    @classmethod
    def __torch_dispatch__(cls, op, types, args=(), kwargs=None):
        with Device():
            return op(*args, **(kwargs or {}))

    def cpu(self):
        return self.to("cpu")

    def tolist(self):
        return self.cpu().tolist()

    def data_ptr(self):
        return self.data_on_device.data_ptr()

    @property
    def data(self):
        return self.detach()

    @data.setter
    def data(self, new):
        self.data_on_device = new.data_on_device

    def numpy(self, *, force=False):
        if force:
            return self.detach().cpu().numpy()
        raise TypeError("can't convert cuda:0 device type tensor to numpy")

    def __array__(self, dtype=None):
        return self.numpy()

    def __deepcopy__(self, memo):
        copied = self.detach().clone()
        if isinstance(self, torch.nn.Parameter):
            copied = torch.nn.Parameter(copied, self.requires_grad)
        return memo.setdefault(id(self), copied)

    def __reduce_ex__(self, protocol):  # as if it were loaded to the CPU
        return self.data_on_device.__reduce_ex__(protocol)

    def __format__(self, spec):
        return format(self.item() if self.dim() == 0 else repr(self), spec)

    def __repr__(self):
        return f"OnDevice({self.cpu()})"


def on_device(x):
    return isinstance(x, OnDevice)


def on_host(x):
    return isinstance(x, torch.Tensor) and not on_device(x)


def cloned(x):
    return x.clone() if isinstance(x, torch.Tensor) else x


class Generator(torch.Generator):
    """One of the host, which knows for which device it was asked for."""

    def __new__(cls, device="cpu"):
        made = super().__new__(cls)
        made.of = torch.device(device).type
        return made


class Event:
    """On the one stream, which is waited for as a whole."""

    def __init__(self, device, **options):
        self.synchronize = device.wait
        self.record = self.wait = lambda stream=None: None
        self.query, self.elapsed_time = lambda: True, lambda end: 0.0


class LSTM(torch.autograd.Function):
    """torch.lstm as one operation, as cuDNN's is; on a CPU it is many, or another one."""

    @staticmethod
    def forward(ctx, device, learns, options, *tensors):
        def run(*tensors):
            with torch.set_grad_enabled(learns):
                ctx.given = [x.detach().requires_grad_(learns) for x in tensors]
                x, h, c, *weights = ctx.given
                ctx.made = torch.lstm(x, (h, c), weights, *options)
            return [x.detach() for x in ctx.made]

        ctx.device = device
        return tuple(device.once("lstm", run, tensors))

    @staticmethod
    def backward(ctx, *gradients):
        def run(*gradients):
            return torch.autograd.grad(ctx.made, ctx.given, gradients)

        return None, None, None, *ctx.device.once("lstm's backward", run, gradients)


class Names(TorchFunctionMode):
    """Says meta wherever a script says cuda, for which PyTorch would look for a GPU."""

    def __init__(self, device):
        super().__init__()
        self.device = device

    def __torch_function__(self, function, types, args=(), kwargs=None):
        def name(x):
            is_name = isinstance(x, str | torch.device) and str(x).partition(":")[0] == "cuda"
            return META if is_name else x

        if function is torch.device:
            return function(*args, **(kwargs or {}))
        kwargs = dict(kwargs or {})
        if function in _device._device_constructors() and kwargs.get("device") is None:
            within = _device.CURRENT_DEVICE  # with torch.device(device):
            kwargs |= {"device": within} if within is not None else {}
        args, kwargs = tree_map(name, args), tree_map(name, kwargs)
        if kwargs.pop("pin_memory", False):
            return self.device.pinned(function(*args, **kwargs))
        generator = kwargs.get("generator")
        there = kwargs.get("device") == META or any(map(on_device, args))
        if generator is not None and there:
            if getattr(generator, "of", "cpu") != "cuda":
                raise RuntimeError("a generator of the CPU's cannot draw on cuda:0")
            if self.device.graph:
                raise RuntimeError("a CUDA graph cannot hold a generator of one's own")
        if function in SEEN:
            self.device.arrived(args[0])
        if function is torch.lstm and on_device(args[0]) and isinstance(args[2], list | tuple):
            tensors = args[0], *args[1], *args[2]
            learns = torch.is_grad_enabled() and any(x.requires_grad for x in tensors)
            return LSTM.apply(self.device, learns, args[3:], *tensors)
        if function is torch.Tensor.cuda:
            return args[0].to("meta")
        # these fill no tensor on meta
        if function in (torch.tensor, torch.as_tensor, torch.asarray):
            device = kwargs.pop("device", None)
            if on_device(args[0]):
                made = args[0].to(kwargs.get("dtype") or args[0].dtype)
            else:
                made = function(*args, device="cpu", **kwargs)
            return made if device is None else made.to(device)
        if function in (torch.Tensor.__getitem__, torch.Tensor.__setitem__):
            index = args[1] if isinstance(args[1], tuple) else (args[1],)
            index = tuple(torch.tensor(x) if isinstance(x, list) else x for x in index)
            args = args[0], index, *args[2:]
        if function is torch.Tensor.new_tensor:
            device = kwargs.pop("device", "meta" if on_device(args[0]) else "cpu")
            return torch.tensor(*args[1:], **{"dtype": args[0].dtype} | kwargs).to(device)
        return function(*args, **kwargs)


class Device(TorchDispatchMode):
    """Does what is to be done on the device.

    waits: where the host waited, {(number of a line of the script, of the one that called it, ...)}
    replays: of graphs. graph: the one that records, or compares, what is done now.
    pins, coming: tensors in the host's pinned memory, and those that a copy is under way to, which
    the host has not waited for; by their address.
    """

    def __init__(self, script=""):
        super().__init__()
        self.script, self.waits, self.replays, self.graph = script, set(), 0, None
        self.pins, self.coming = {}, {}

    def pinned(self, x, device=None):
        x = x if place(x) in self.pins else x.clone()
        return self.pins.setdefault(place(x), x)

    def arrived(self, x):
        if on_host(x) and place(x) in self.coming:
            raise RuntimeError("read before its copy from the device has been waited for")

    def once(self, name, function, tensors):
        """The results of a function on the device, as of one operation."""
        given = [x.data_on_device for x in tensors]
        form = self.graph.form(name, given, {}) if self.graph else None
        made = function(*given)
        if self.graph:
            self.graph.done(function, given, {}, made, form)
        return [OnDevice(x) for x in made]

    def wait(self):
        self.coming.clear()
        frame, numbers = sys._getframe(), []
        while frame is not None:
            path, function = frame.f_code.co_filename, frame.f_code.co_name
            if Path(path).stem == self.script:
                numbers.append(frame.f_lineno)
            elif function in ("step", "reset") and not numbers and not path.startswith(LIBRARIES):
                if not isinstance(frame.f_locals.get("self"), torch.optim.Optimizer):
                    return  # in an environment
            frame = frame.f_back
        if self.graph:
            raise RuntimeError("a CUDA graph cannot hold this, as the host would wait in it")
        self.waits.add(tuple(numbers))

    def __torch_dispatch__(self, op, types, args=(), kwargs=None):
        kwargs, packet = dict(kwargs or {}), op.overloadpacket
        if torch.Tag.inplace_view in op.tags and on_device(args[0]):  # t_(): another shape
            with no_dispatch():
                op(*args, **kwargs)  # of the wrapper
            args[0].data_on_device = op(args[0].data_on_device.detach(), *args[1:], **kwargs)
            return args[0]
        tensors = [x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
        to_device = any(map(on_device, tensors))
        if packet is aten.copy_:
            to_device = on_device(args[0])
        elif kwargs.get("device") is not None:
            to_device = torch.device(kwargs["device"]).type == "meta"
            kwargs["device"] = "cpu"

        if not any(x.alias_info and not x.alias_info.is_write for x in op._schema.returns):
            for x in tensors[packet is aten.copy_ :]:  # a view reads nothing
                self.arrived(x)
        operands, asynchronous = tensors, False
        if packet in (aten.copy_, aten._to_copy):
            operands = []
            asynchronous = kwargs.pop("non_blocking", False) or any(args[2:])
            if on_device(args[1] if packet is aten.copy_ else args[0]) == to_device:
                asynchronous = False
            elif not asynchronous:
                self.wait()
        elif packet in INDEX:
            indices = [x for x in args[1] if x is not None]
            operands = [args[0], *args[2:3], *filter(on_device, indices)]
            fills = len(args) > 2 and args[2].numel() == 1  # as masked_fill_ does
            if to_device and any(
                on_host(x) or x.dtype == torch.bool and not fills for x in indices
            ):
                self.wait()
        least = -1 if packet in (aten.cat, aten.stack) else 0  # else a number may be the host's
        if any(map(on_device, operands)) and any(on_host(x) and x.dim() > least for x in operands):
            raise RuntimeError(f"{op}: tensors on cuda:0 and on cpu")
        # a deviation that is a tensor is checked by CUDA's normal
        checks = packet is aten.normal and on_device(args[1])
        if checks or packet in READ and any(map(on_device, tensors)):
            self.wait()

        def data(x):
            return x.data_on_device if on_device(x) else x

        given = {id(data(x)): x for x in tensors}

        def wrapped(x):
            if not isinstance(x, torch.Tensor):
                return x
            return given[id(x)] if id(x) in given else OnDevice(x) if to_device else x

        on_tape = self.graph and (to_device or any(map(on_device, tensors)))
        form = self.graph.form(op, args, kwargs) if on_tape else None
        args, kwargs = tree_map(data, args), tree_map(data, kwargs)
        result = op(*args, **kwargs)
        if on_tape:
            self.graph.done(op, args, kwargs, result, form)
        if asynchronous and not to_device:
            if packet is aten._to_copy:  # PyTorch pins what it makes
                self.pins[place(result)] = result
            if place(result) in self.pins:  # to other memory the host waits for a copy
                self.coming[place(result)] = result
                if self.graph:
                    self.graph.coming[place(result)] = result
        return tree_map(wrapped, result)


class Graph:
    """tensordict's CudaGraphModule. The calls before the one of number `warmup` run the function,
    that one is recorded, and later ones repeat its operations on the same memory.

    compares: later ones run the function, and raise where it does what the graph would not repeat.
    """

    def __init__(self, device, compares, function, warmup=2):
        self.device, self.compares, self.function, self.left = device, compares, function, warmup
        self.tape, self.forms, self.at, self.fresh, self.coming = [], [], 0, set(), {}
        self.inputs = self.outputs = None

    def __call__(self, *inputs):
        self.left -= 1
        if self.left > 0:
            return self.function(*inputs)
        if self.left == 0:
            self.inputs = tree_map(cloned, inputs)
            self.run()
        else:
            self.device.replays += 1
            for kept, new in zip(tree_leaves(self.inputs), tree_leaves(inputs), strict=True):
                kept.copy_(new)
            if self.compares:
                self.run()
            else:
                self.replay()
        return tree_map(cloned, self.outputs)

    def run(self):
        self.device.graph, self.at, self.fresh = self, 0, set()
        try:
            self.outputs = self.function(*self.inputs)
        finally:
            self.device.graph = None
        if self.at < len(self.forms) and self.left < 0:
            raise RuntimeError(f"a CUDA graph would go on with {self.forms[self.at][0]}")

    @torch.no_grad()
    def replay(self):
        for op, args, kwargs, kept in self.tape:
            new = op(*args, **kwargs)
            for old, now in zip(tree_leaves(kept), tree_leaves(new), strict=True):
                if isinstance(old, torch.Tensor) and old.data_ptr() != now.data_ptr():
                    old.copy_(now)
        self.device.coming |= self.coming

    def form(self, op, args, kwargs):
        """What a graph keeps of an operation: its numbers, and the place of each tensor in memory
        that was there before it. Raises where it is another one than was recorded."""
        found = [op]
        for x in tree_leaves((args, kwargs)):
            if not isinstance(x, torch.Tensor):
                found.append(x)
            elif on_host(x) and not x.dim():  # a number to a kernel
                found.append(x.item())
            else:
                found.append(None if place(x) in self.fresh else Place(x.data_ptr()))
        if self.left < 0:
            kept = self.forms[self.at] if self.at < len(self.forms) else ["nothing"]
            for old, new in zip(kept, found, strict=False):
                if old != new and not (old != old and new != new):
                    moved = isinstance(old, Place) or isinstance(new, Place)
                    said = f"another tensor in {op}" if moved else f"{old} in place of {new}"
                    raise RuntimeError(f"a CUDA graph would keep {said}")
            self.at += 1
        return found

    def done(self, op, args, kwargs, result, form):
        given = {place(x) for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)}
        made = {place(x) for x in tree_leaves(result) if isinstance(x, torch.Tensor)}
        self.fresh |= made - given
        if self.left == 0:
            self.tape.append((op, args, kwargs, result))
            self.forms.append(form)


class Place(int):
    """Of a tensor in memory."""


def place(x):
    return (x.data_on_device if on_device(x) else x).untyped_storage().data_ptr()


def one_group(lists, with_indices=False):
    """Adam's tensors as a group of one device and type, of which PyTorch would ask meta."""
    return {(CUDA, torch.float32): (lists, [*range(len(lists[0]))])}


@contextmanager
def simulated(script, compares=False):
    """Within it a script finds one GPU, and no process beside it. script: its stem, for `waits` of
    the Device that this yields. compares: see Graph.
    """
    device, init = Device(script), dist.init_process_group
    stream = SimpleNamespace(synchronize=device.wait, is_capturing=lambda: bool(device.graph))
    about = SimpleNamespace(name="a simulated GPU", major=9, minor=0, total_memory=2**36)
    about.multi_processor_count = 1
    optimizer = torch.optim.Optimizer
    replaced = [
        (torch.cuda, "is_available", lambda: True),
        (torch.cuda, "device_count", lambda: 1),
        (torch.cuda, "get_device_name", lambda device=None: about.name),
        (torch.cuda, "get_device_properties", lambda device=None: about),
        (torch.cuda, "get_device_capability", lambda device=None: (about.major, about.minor)),
        (torch.cuda, "Event", partial(Event, device)),
        (torch.cuda, "set_device", lambda device: None),
        (torch.cuda, "get_rng_state", torch.get_rng_state),
        (torch.cuda, "set_rng_state", torch.set_rng_state),
        (torch.cuda, "current_device", lambda: 0),
        (torch.cuda, "current_stream", lambda device=None: stream),
        (torch.cuda, "is_bf16_supported", lambda: True),
        (torch.cuda, "is_current_stream_capturing", stream.is_capturing),
        (torch.cuda, "synchronize", lambda device=None: stream.synchronize()),
        (torch.accelerator, "current_accelerator", lambda check_available=False: CUDA),
        (torch.accelerator, "current_stream", lambda device=None: stream),
        (torch.nn.RNNBase, "flatten_parameters", lambda self: None),  # it is cuDNN's
        (torch, "Generator", Generator),
        (torch.Tensor, "pin_memory", lambda x, on=None: device.pinned(x)),
        (torch.Tensor, "is_pinned", lambda x, on=None: place(x) in device.pins),
        (optimizer, "_group_tensors_by_device_and_dtype", staticmethod(one_group)),
        (tensordict.nn, "CudaGraphModule", partial(Graph, device, compares)),
        (dist, "init_process_group", lambda *backend, **named: init("gloo", **named)),
        (dist, "broadcast", lambda x, *ranks, **named: None),
        (dist, "all_reduce", lambda x, *ranks, **named: None),
    ]
    with ExitStack() as stack:
        for owner, name, new in replaced:
            stack.enter_context(patch.object(owner, name, new))
        stack.enter_context(Names(device))
        yield stack.enter_context(device)
