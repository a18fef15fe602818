"""Kinds and places of operations."""

import pytest

from stillbox.profiling.costs import Classifier, Kind, kind_of_kernel, place_of
from stillbox.profiling.hlo import Instruction
from tests.profiling.made import program


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
        # A product that stands for a 1x1 convolution is one, on all platforms.
        (Instruction("a", "dot", op_name=CONV + "dot"), *[Kind.CONVOLUTIONS] * 2),
        (Instruction("a", "custom-call", "__cublas$gemm", CONV + "conv"), *[Kind.CONVOLUTIONS] * 2),
        # Patches are what a CPU makes convolutions of; a GPU's change of layout is a copy.
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
