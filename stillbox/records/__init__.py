"""Bytes on disk to examples and back: TFRecord, tf.Example, label maps, COCO, VOC."""
