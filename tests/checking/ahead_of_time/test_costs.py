"""The costs of compiled programs."""

from stillbox.checking.ahead_of_time.costs import collective_bytes, count_flops, memory_traffic
from stillbox.checking.ahead_of_time.hlo import Message, read_program
from tests.checking.ahead_of_time.made import module
from tests.checking.ahead_of_time.programs import PROGRAM

_GPU_TEXT = """\
HloModule jit_step, is_scheduled=true

%fused (p: f32[8,4]) -> f32[8,6] {
  %p = f32[8,4]{1,0} parameter(0)
  %q = f32[4,6]{1,0} constant({...})
  ROOT %inner = f32[8,6]{1,0} dot(%p, %q), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}

ENTRY %main (x: bf16[2,10,10,6], k: bf16[12,3,3,6]) -> f32[8,6] {
  %x = bf16[2,10,10,6]{3,2,1,0} parameter(0)
  %k = bf16[12,3,3,6]{3,2,1,0} parameter(1)
  %y = (bf16[2,5,5,12]{3,2,1,0}, u8[0]{0}) custom-call(%x, %k), window={size=3x3 stride=2x2}, \
dim_labels=b01f_o01i->b01f, custom_call_target="__cudnn$convForward"
  %dy = bf16[2,5,5,12]{3,2,1,0} get-tuple-element(%y), index=0
  %dx = (bf16[2,10,10,6]{3,2,1,0}, u8[0]{0}) custom-call(%dy, %k), window={size=3x3 stride=2x2}, \
dim_labels=b01f_o01i->b01f, custom_call_target="__cudnn$convBackwardInput"
  %dk = (bf16[12,3,3,6]{3,2,1,0}, u8[0]{0}) custom-call(%x, %dy), window={size=3x3 stride=2x2}, \
dim_labels=b01f_o01i->b01f, custom_call_target="__cudnn$convBackwardFilter"
  %d = bf16[6,3,3,1]{3,2,1,0} constant({...})
  %depthwise = (bf16[2,10,10,6]{3,2,1,0}, u8[0]{0}) custom-call(%x, %d), window={size=3x3}, \
dim_labels=b01f_o01i->b01f, feature_group_count=6, custom_call_target="__cudnn$convForward"
  %a = f32[8,4]{1,0} constant({...})
  %f = f32[8,6]{1,0} fusion(%a), kind=kCustom, calls=%fused
  %b = f32[4,6]{1,0} constant({...})
  ROOT %g = (f32[8,6]{1,0}, s8[64]{0}) custom-call(%a, %b), custom_call_target="__cublas$gemm", \
backend_config={"dot_dimension_numbers":{"lhs_contracting_dimensions":["1"]}}
}
"""


def test_convolutions_and_matrix_products_of_a_gpu_are_counted():
    # 2 * 5 * 5 * 12 numbers, each of 3 * 3 * 6 products: forward and both gradients alike.
    convolution = 2 * (2 * 5 * 5 * 12) * (3 * 3 * 6)
    depthwise = 2 * (2 * 10 * 10 * 6) * (3 * 3)
    matrices = 2 * (8 * 6) * 4
    assert (
        count_flops(read_program(Message(module(_GPU_TEXT))))
        == 3 * convolution + depthwise + 2 * matrices
    )


def test_collectives_are_summed_by_kind():
    # All-reduce: three rounds of 100 float32, and once 8 x 128 bfloat16. All-gather: 100 float32.
    assert collective_bytes(PROGRAM) == {"all-reduce": 3 * 400 + 8 * 128 * 2, "all-gather": 400}


def test_traffic_leaves_out_arrays_on_the_chip():
    loop = 3 * (512 + 512)
    parts = (
        4096,  # the copy reads the parameters; it writes on the chip
        4096 + 2048,  # the fusion reads the average and writes bfloat16
        512,  # a row of the average goes to the chip
        512 + 512,  # the same row is copied within the memory
        loop,
        2048,  # the asynchronous sum reads
        2048,  # and writes
        512 + 1024,  # 200 numbers fill a tile of 256
    )
    assert memory_traffic(PROGRAM) == sum(parts)
