"""The peer of `faster_rcnn.py` in PyTorch: torchvision's `fasterrcnn_resnet50_fpn`.

    TORCH_PYTHON benchmarks/torch_faster_rcnn.py INPUTS.npz --threads 2

`faster_rcnn.py` starts it and writes the inputs. It needs torchvision's compiled operators.
"""

from torch import nn
from torch_peer import Inputs, Loss, own_loss, run_peers, torchvision_detection


def fasterrcnn_resnet50_fpn(inputs: Inputs) -> tuple[nn.Module, Loss]:
    """Returns torchvision's network from scratch with our numbers of boxes, and its own loss.

    Without weights its backbone is trained as a whole, with batch norm by the batch's statistics.
    With a threshold of 0 every class of every proposal enters suppression, as with ours: fresh
    weights would give no detection at all otherwise.
    """
    side = inputs.images.shape[-1]
    proposals = int(inputs.arrays["proposals"][0])
    network = torchvision_detection().fasterrcnn_resnet50_fpn(
        weights=None,
        weights_backbone=None,
        num_classes=inputs.slots,
        min_size=side,
        max_size=side,
        rpn_post_nms_top_n_train=proposals,
        rpn_post_nms_top_n_test=proposals,
        box_batch_size_per_image=int(inputs.arrays["sampled"][0]),
        box_score_thresh=0.0,
    )
    return own_loss(network)


if __name__ == "__main__":
    run_peers({"torchvision fasterrcnn_resnet50_fpn": fasterrcnn_resnet50_fpn}, weight_decay=1e-4)
