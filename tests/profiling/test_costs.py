"""Kinds of operations, and the costs of compiled programs."""

import pytest

from stillbox.devices.chips import CHIPS
from stillbox.profiling.costs import (
    Classifier,
    Kind,
    collective_bytes,
    count_flops,
    estimate,
    kind_of_kernel,
    memory_traffic,
    place_of,
)
from stillbox.profiling.hlo import Instruction, Message, read_program
from tests.checking.ahead_of_time.programs import PROGRAM
from tests.profiling.made import module, program


@pytest.mark.parametrize(
    ("origin", "place"),
    [
        ("jit(step)/jvp(backbone)/conv_0/add", "backbone/conv_0"),
        ("jit(step)/transpose(jvp(backbone))/conv_0/jvp()/lt", "backbone/conv_0 (gradient)"),
        (
            "jit(step)/transpose(jvp(head))/map_1/box/convolution/cond/branch_0_fun/jit(f)/dot",
            "head/map_1/box/convolution (gradient)",
        ),
        (  # of a rematerialised block
            "jit(step)/transpose(jvp(head))/map_1/transpose(transpose(jvp(head)))/map_1/box/add",
            "head/map_1/box (gradient)",
        ),
        ("jit(step)/jvp(losses)/targets/vmap(jit(_where))/select_n", "losses/targets"),
        ("jit(step)/update/mul", "update"),
        ("jit(detect)/eval_jaxpr/backbone/conv_0/add", "backbone/conv_0"),
        # Cut off from its caller, an argument, the compiler's own.
        ("dot_general", ""),
        ("state.params['backbone.conv_0.kernel']", ""),
        ("", ""),
    ],
)
def test_a_place_is_the_path_of_modules(origin, place):
    assert str(place_of(origin)) == place


CONV = "jit(step)/jvp(backbone)/conv_0/convolution/"


@pytest.mark.parametrize(
    ("instruction", "on_cpu", "elsewhere"),
    [
        (Instruction("a", "convolution", op_name=CONV + "conv"), *[Kind.CONVOLUTIONS] * 2),
        (Instruction("a", "custom-call", "__cudnn$convForward"), *[Kind.CONVOLUTIONS] * 2),
        # A product in place of a 1x1 convolution counts as a convolution, on all platforms.
        (Instruction("a", "dot", op_name=CONV + "dot"), *[Kind.CONVOLUTIONS] * 2),
        (Instruction("a", "custom-call", "__cublas$gemm", CONV + "conv"), *[Kind.CONVOLUTIONS] * 2),
        # A CPU computes convolutions from patches; a GPU's change of layout is a copy.
        (Instruction("a", "transpose", op_name=CONV + "conv"), Kind.CONVOLUTIONS, Kind.COPIES),
        (Instruction("a", "dot", op_name="jit(step)/jvp(head)/dot"), *[Kind.PRODUCTS] * 2),
        (Instruction("a", "dot", op_name="jit(step)/jvp(losses)/dot"), *[Kind.LOSSES] * 2),
        (Instruction("a", "dot", op_name="jit(step)/jvp(losses)/targets/dot"), *[Kind.TARGETS] * 2),
        (Instruction("a", "add", op_name="jit(step)/update/add"), *[Kind.OPTIMIZER] * 2),
        (Instruction("a", "add", op_name="jit(step)/jvp(penalty)/add"), *[Kind.OPTIMIZER] * 2),
        (Instruction("a", "sort", op_name="jit(f)/postprocess/sort"), *[Kind.DETECTIONS] * 2),
        # A CPU's sums of channels are products with ones.
        (Instruction("a", "dot", op_name="jit(s)/jvp(neck)/l/channel_sum/dot"),
         *[Kind.REDUCTIONS] * 2),
        (Instruction("a", "reduce", op_name="jit(s)/jvp(neck)/sum"), *[Kind.REDUCTIONS] * 2),
        (Instruction("a", "copy"), *[Kind.COPIES] * 2),
        (Instruction("a", "all-reduce-start", op_name="jit(s)/update/add"),
         *[Kind.COLLECTIVES] * 2),
        (Instruction("a", "add", op_name="jit(s)/jvp(neck)/add"), *[Kind.ELEMENTWISE] * 2),
        (Instruction("a", "infeed"), *[Kind.INFEED] * 2),
    ],
)  # fmt: skip
def test_kinds_of_instructions(instruction, on_cpu, elsewhere):
    one = program(instruction)
    assert Classifier(one, lowered=True).kind("a") is on_cpu
    assert Classifier(one, lowered=False).kind("a") is elsewhere


@pytest.mark.parametrize(
    ("inner", "kind"),
    [
        (("multiply", "reduce"), Kind.REDUCTIONS),
        (("transpose", "copy"), Kind.COPIES),
        (("transpose", "add"), Kind.ELEMENTWISE),
        (("dot", "add"), Kind.PRODUCTS),
        (("convolution", "add"), Kind.CONVOLUTIONS),
    ],
)
def test_a_fusion_is_what_is_inside_it(inner, kind):
    fusion = Instruction("fusion", "fusion", called=("body",))
    names = [Instruction(f"i{number}", one) for number, one in enumerate(inner)]
    one = program(fusion, *names, body=tuple(name.name for name in names))
    assert Classifier(one, lowered=False).kind("fusion") is kind


def test_an_instruction_without_a_path_has_that_of_its_body_caller_or_neighbours():
    one = program(
        Instruction("call", "call", op_name="jit(step)/jvp(losses)/f", called=("inner",)),
        Instruction("mul", "multiply", op_name="mul"),
        Instruction("fusion", "fusion", called=("body",)),
        Instruction("x", "add", op_name="jit(step)/update/add"),
        Instruction("copy", "copy", operands=("x",)),
        Instruction("window", "reduce-window"),
        Instruction("sum", "reduce", op_name="jit(s)/jvp(neck)/sum", operands=("window",)),
        Instruction("alone", "add"),
        inner=("mul",),
        body=("x",),
    )
    classifier = Classifier(one, lowered=True)
    names = ("mul", "fusion", "copy", "window", "alone")
    assert [str(classifier.place(name)) for name in names] == [
        *("losses", "update", "update", "neck", "")
    ]


@pytest.mark.parametrize(
    ("kernel", "kind"),
    [
        ("sm90_xmma_fprop_implicit_gemm_bf16bf16_bf16f32_f32_nhwckrsc_nhwc", Kind.CONVOLUTIONS),
        ("cudnn::engines_precompiled::nchwToNhwcKernel<float>", Kind.COPIES),
        ("nvjet_hsh_128x256_64x4_2x1_v_bz_coopA_NNT", Kind.PRODUCTS),
        ("ncclDevKernel_AllReduce_Sum_f32_RING_LL", Kind.COLLECTIVES),
        ("MemcpyH2D", Kind.INFEED),
        ("MemcpyD2D", Kind.COPIES),
        ("loop_add_fusion", Kind.ELEMENTWISE),
    ],
)
def test_kernels_of_libraries_are_classified_by_name(kernel, kind):
    assert kind_of_kernel(kernel) is kind


def test_the_source_is_shown_inside_its_package():
    one = program(
        Instruction("a", "add", source="/home/x/stillbox/models/detector.py:70"),
        Instruction("b", "add", source="/x/lib/python3.11/site-packages/optax/tree.py:5"),
        Instruction("c", "add", source="train.py:9"),
        Instruction("d", "add"),
    )
    classifier = Classifier(one, lowered=True)
    assert [classifier.source(name) for name in "abcd"] == [
        "stillbox/models/detector.py:70",
        "optax/tree.py:5",
        "train.py:9",
        "",
    ]


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


def test_each_part_of_the_roofline_is_limited_by_its_peak():
    roof = estimate(CHIPS["v5e"], flops=197e12 / 100, traffic=819e9 / 50, collective=1e9, devices=8)
    assert roof.products == pytest.approx(0.01)
    assert roof.memory == pytest.approx(0.02)
    # 7/8 of a gigabyte twice, at 200 GB/s.
    assert roof.network == pytest.approx(1.75 / 200)
    assert (roof.seconds, roof.bound) == (roof.memory, "memory")
    assert roof.to_dict()["bound"] == "memory"


def test_a_core_has_half_the_peak_of_its_chip():
    roof = estimate(CHIPS["v3"], flops=123e12, traffic=0, collective=0, devices=8)
    assert roof.products == pytest.approx(2)


def test_one_device_needs_no_network():
    assert estimate(CHIPS["v5e"], flops=0, traffic=0, collective=1e9, devices=1).network == 0
