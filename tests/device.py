"""A CUDA device that there is not: tensors whose numbers the host cannot reach.

They lie on the CPU after all and come from its generator, so that a run on this device equals one
on the CPU to the last bit. What a GPU refuses is refused, NumPy and operands on both sides, and
where the host would wait for a GPU is written down. Not simulated: kernels and their rounding,
streams, graphs, compiling.
"""

import sys
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import torch
import torch.distributed as dist
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

CUDA = torch.device("cuda", 0)
aten = torch.ops.aten
INDEX = {aten.index, aten.index_put, aten.index_put_, aten._index_put_impl_, aten._unsafe_index}
# a GPU's host needs their result, or the size of it
READ = {aten._local_scalar_dense, aten.equal, aten.is_nonzero, aten.nonzero, aten.masked_select}


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

    def numpy(self):
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

    def __repr__(self):
        return f"OnDevice({self.data_on_device})"


def on_device(x):
    return isinstance(x, OnDevice)


def on_host(x):
    return isinstance(x, torch.Tensor) and not on_device(x)


class Names(TorchFunctionMode):
    """Says meta wherever a script says cuda, for which PyTorch would look for a GPU."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        def name(x):
            return torch.device("meta") if isinstance(x, torch.device) and x.type == "cuda" else x

        args, kwargs = tree_map(name, args), tree_map(name, dict(kwargs or {}))
        if function is torch.tensor:  # which fills no tensor on meta
            device = kwargs.pop("device", "cpu")
            return function(*args, **kwargs).to(device)
        return function(*args, **kwargs)


class Device(TorchDispatchMode):
    """Does what is to be done on the device.

    waits: where the host waited, {(number of a line of the script, of the one that called it, ...)}
    """

    def __init__(self, script=""):
        super().__init__()
        self.script, self.waits = script, set()

    def wait(self):
        frame, numbers = sys._getframe(), []
        while frame is not None:
            stem = Path(frame.f_code.co_filename).stem
            if stem == "worlds":  # in place of the physics, which would not wait
                return
            if stem == self.script:
                numbers.append(frame.f_lineno)
            frame = frame.f_back
        self.waits.add(tuple(numbers))

    def __torch_dispatch__(self, op, types, args=(), kwargs=None):
        kwargs, packet = dict(kwargs or {}), op.overloadpacket
        tensors = [x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
        to_device = any(map(on_device, tensors))
        if packet is aten.copy_:
            to_device = on_device(args[0])
        elif kwargs.get("device") is not None:
            to_device = torch.device(kwargs["device"]).type == "meta"
            kwargs["device"] = "cpu"

        operands = tensors
        if packet in (aten.copy_, aten._to_copy):
            operands = []
            asynchronous = kwargs.pop("non_blocking", False) or any(args[2:])
            if on_device(args[1] if packet is aten.copy_ else args[0]) != to_device:
                if not asynchronous:
                    self.wait()
        elif packet in INDEX:
            indices = [x for x in args[1] if x is not None]
            operands = [args[0], *args[2:3], *filter(on_device, indices)]
            if to_device and any(on_host(x) or x.dtype == torch.bool for x in indices):
                self.wait()
        if any(map(on_device, operands)) and any(on_host(x) and x.dim() for x in operands):
            raise RuntimeError(f"{op}: tensors on cuda:0 and on cpu")
        if packet in READ and any(map(on_device, tensors)):
            self.wait()

        def data(x):
            return x.data_on_device if on_device(x) else x

        given = {id(data(x)): x for x in tensors}

        def wrapped(x):
            if not isinstance(x, torch.Tensor):
                return x
            return given.get(id(x)) if id(x) in given else OnDevice(x) if to_device else x

        return tree_map(wrapped, op(*tree_map(data, args), **tree_map(data, kwargs)))


@contextmanager
def simulated(monkeypatch, script):
    """Within it a script finds one GPU; yields the Device."""
    device, init = Device(script), dist.init_process_group
    stream = SimpleNamespace(synchronize=device.wait)
    with monkeypatch.context() as patch:
        patch.setattr(torch.cuda, "is_available", lambda: True)
        patch.setattr(torch.cuda, "set_device", lambda device: None)
        patch.setattr(torch.cuda, "get_rng_state", torch.get_rng_state)
        patch.setattr(torch.cuda, "set_rng_state", torch.set_rng_state)
        patch.setattr(torch.cuda, "current_stream", lambda: stream)
        patch.setattr(torch.Tensor, "pin_memory", lambda x: x)
        patch.setattr(dist, "init_process_group", lambda *backend, **named: init("gloo", **named))
        for collective in ("broadcast", "all_reduce"):  # of one process
            patch.setattr(dist, collective, lambda x, *ranks, **named: None)

        def one_group(lists, with_indices=False):  # PyTorch would ask for that of meta
            return {(CUDA, torch.float32): (lists, [*range(len(lists[0]))])}

        adam = torch.optim.Optimizer
        patch.setattr(adam, "_group_tensors_by_device_and_dtype", staticmethod(one_group))
        with Names(), device:
            yield device
