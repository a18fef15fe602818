"""A compiled program, small enough to work out by hand, and marks of tests that need a compiler."""

import importlib.util
import os
from pathlib import Path

import pytest

from stillbox.checking.ahead_of_time.hlo import Message, read_program
from tests.checking.ahead_of_time.made import module

if not Path("/dev/nvidiactl").exists():
    # Before other tests start the devices of this process, as `stillbox check` does it.
    os.environ.setdefault("JAX_SKIP_CUDA_CONSTRAINTS_CHECK", "1")

needs_libtpu = pytest.mark.skipif(
    not importlib.util.find_spec("libtpu"),
    reason="libtpu is not installed: pip install -e '.[tpu]'",
)
needs_cuda_plugin = pytest.mark.skipif(
    not importlib.util.find_spec("jax_cuda13_plugin"),
    reason="the plugin for CUDA is not installed: pip install -e '.[cuda]'",
)


# A step of 2 devices: 4 KiB of parameters (2 KiB on the chip while they are used), a loop of three
# rounds, and three sums over the devices, one of them asynchronous.
_TEXT = """\
HloModule jit_step, is_scheduled=true, entry_computation_layout={(f32[8,128]{1,0:T(8,128)})->f32[]}

%add (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %sum = f32[] add(%a, %b)
}

%fused (p: f32[8,128]) -> bf16[8,128] {
  %p = f32[8,128]{1,0:T(8,128)} parameter(0)
  ROOT %half = bf16[8,128]{1,0:T(8,128)(2,1)} convert(%p)
}

%round (state: (s32[], f32[100])) -> (s32[], f32[100]) {
  %state = (s32[]{:T(128)}, f32[100]{0:T(128)}) parameter(0)
  %count = s32[]{:T(128)} get-tuple-element(%state), index=0
  %values = f32[100]{0:T(128)} get-tuple-element(%state), index=1
  %reduced = f32[100]{0:T(128)} all-reduce(%values), channel_id=1, to_apply=%add
  ROOT %next = (s32[]{:T(128)}, f32[100]{0:T(128)}) tuple(%count, %reduced)
}

%part (e.1: f32[8,128]) -> f32[1,128] {
  %e.1 = f32[8,128]{1,0:T(8,128)} parameter(0)
  ROOT %row = f32[1,128]{1,0:T(1,128)S(1)} slice(%e.1), slice={[0:1], [0:128]}
}

%goes_on (state.1: (s32[], f32[100])) -> pred[] {
  %state.1 = (s32[]{:T(128)}, f32[100]{0:T(128)}) parameter(0)
  ROOT %yes = pred[]{:T(512)} constant(true)
}

ENTRY %main (w: f32[8,128], m: f32[100], e: f32[8,128], x: f32[2,9,9,3]) -> f32[100] {
  %w = f32[8,128]{1,0:T(8,128)} parameter(0), metadata={op_name="state.params[\\'head.kernel\\']"}
  %m = f32[100]{0:T(128)} parameter(1), metadata={op_name="state.optimizer[0].trace[\\'a\\']"}
  %e = f32[8,128]{1,0:T(8,128)} parameter(2), metadata={op_name="state.ema[\\'head.kernel\\']"}
  %x = f32[2,9,9,3]{0,2,3,1:T(2,128)} parameter(3), metadata={op_name="batch.images"}
  %start = (f32[8,128]{1,0:T(8,128)S(1)}, f32[8,128]{1,0:T(8,128)}, u32[]{:S(2)}) copy-start(%w)
  %done = f32[8,128]{1,0:T(8,128)S(1)} copy-done(%start)
  %f = bf16[8,128]{1,0:T(8,128)(2,1)} fusion(%done, /*index=1*/%e), kind=kLoop, calls=%fused
  %ss = ((f32[8,128]{1,0:T(8,128)}), f32[1,128]{1,0:T(1,128)S(1)}, s32[]{:S(2)}) async-start(%e), \
calls=%part
  %sd = f32[1,128]{1,0:T(1,128)S(1)} async-done(%ss)
  %cut = f32[1,128]{1,0:T(1,128)} slice(%e), slice={[0:1], [0:128]}
  %bc = f32[8,128]{1,0:T(8,128)} custom-call(%e, %e), custom_call_target="ConcatBitcast"
  %z = (s32[]{:T(128)}, f32[100]{0:T(128)}) tuple(%m, %m)
  %loop = (s32[]{:T(128)}, f32[100]{0:T(128)}) while(%z), condition=%goes_on, body=%round, \
backend_config={"known_trip_count":{"n":"3"}}
  %ars = (bf16[8,128]{1,0:T(8,128)(2,1)}, bf16[8,128]{1,0:T(8,128)(2,1)}) all-reduce-start(%f)
  %ard = bf16[8,128]{1,0:T(8,128)(2,1)} all-reduce-done(%ars)
  %ag = f32[200]{0:T(256)} all-gather(%m), dimensions={0}
  ROOT %out = f32[100]{0:T(128)} get-tuple-element(%loop), index=1
}
"""

PROGRAM = read_program(Message(module(_TEXT)))
