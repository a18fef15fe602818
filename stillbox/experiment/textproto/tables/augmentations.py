"""Data augmentation: `PreprocessingStep` and its choices."""

TABLE = """
message PreprocessingStep
  normalize_image: NormalizeImage | preprocessing_step
  random_horizontal_flip: RandomHorizontalFlip | preprocessing_step
  random_pixel_value_scale: RandomPixelValueScale | preprocessing_step
  random_image_scale: RandomImageScale | preprocessing_step
  random_rgb_to_gray: RandomRGBtoGray | preprocessing_step
  random_adjust_brightness: RandomAdjustBrightness | preprocessing_step
  random_adjust_contrast: RandomAdjustContrast | preprocessing_step
  random_adjust_hue: RandomAdjustHue | preprocessing_step
  random_adjust_saturation: RandomAdjustSaturation | preprocessing_step
  random_distort_color: RandomDistortColor | preprocessing_step
  random_jitter_boxes: RandomJitterBoxes | preprocessing_step
  random_crop_image: RandomCropImage | preprocessing_step
  random_pad_image: RandomPadImage | preprocessing_step
  random_crop_pad_image: RandomCropPadImage | preprocessing_step
  random_crop_to_aspect_ratio: RandomCropToAspectRatio | preprocessing_step
  random_black_patches: RandomBlackPatches | preprocessing_step
  random_resize_method: RandomResizeMethod | preprocessing_step
  scale_boxes_to_pixel_coordinates: ScaleBoxesToPixelCoordinates | preprocessing_step
  resize_image: ResizeImage | preprocessing_step
  subtract_channel_mean: SubtractChannelMean | preprocessing_step
  ssd_random_crop: SSDRandomCrop | preprocessing_step
  ssd_random_crop_pad: SSDRandomCropPad | preprocessing_step
  ssd_random_crop_fixed_aspect_ratio: SSDRandomCropFixedAspectRatio | preprocessing_step
  ssd_random_crop_pad_fixed_aspect_ratio: SSDRandomCropPadFixedAspectRatio | preprocessing_step
  random_vertical_flip: RandomVerticalFlip | preprocessing_step
  random_rotation90: RandomRotation90 | preprocessing_step
  rgb_to_gray: RGBtoGray | preprocessing_step
  convert_class_logits_to_softmax: ConvertClassLogitsToSoftmax | preprocessing_step
  random_absolute_pad_image: RandomAbsolutePadImage | preprocessing_step
  random_self_concat_image: RandomSelfConcatImage | preprocessing_step
  autoaugment_image: AutoAugmentImage | preprocessing_step
  drop_label_probabilistically: DropLabelProbabilistically | preprocessing_step
  remap_labels: RemapLabels | preprocessing_step
  random_jpeg_quality: RandomJpegQuality | preprocessing_step
  random_downscale_to_target_pixels: RandomDownscaleToTargetPixels | preprocessing_step
  random_patch_gaussian: RandomPatchGaussian | preprocessing_step
  random_square_crop_by_scale: RandomSquareCropByScale | preprocessing_step
  random_scale_crop_and_pad_to_square: RandomScaleCropAndPadToSquare | preprocessing_step
  adjust_gamma: AdjustGamma | preprocessing_step

message NormalizeImage
  original_minval: float
  original_maxval: float
  target_minval: float = 0
  target_maxval: float = 1

message RandomHorizontalFlip
  keypoint_flip_permutation: int32*
  probability: float = 0.5

message RandomVerticalFlip
  keypoint_flip_permutation: int32*
  probability: float = 0.5

message RandomRotation90
  keypoint_rot_permutation: int32*
  probability: float = 0.5

message RandomPixelValueScale
  minval: float = 0.9
  maxval: float = 1.1

message RandomImageScale
  min_scale_ratio: float = 0.5
  max_scale_ratio: float = 2.0

message RandomRGBtoGray
  probability: float = 0.1

message RandomAdjustBrightness
  max_delta: float = 0.2

message RandomAdjustContrast
  min_delta: float = 0.8
  max_delta: float = 1.25

message RandomAdjustHue
  max_delta: float = 0.02

message RandomAdjustSaturation
  min_delta: float = 0.8
  max_delta: float = 1.25

message RandomDistortColor
  color_ordering: int32

message RandomJitterBoxes
  ratio: float = 0.05
  jitter_mode: RandomJitterBoxes.JitterMode = DEFAULT

enum RandomJitterBoxes.JitterMode: DEFAULT=0 EXPAND=1 SHRINK=2
enum RandomJitterBoxes.JitterMode: EXPAND_SYMMETRIC=4 SHRINK_SYMMETRIC=5
enum RandomJitterBoxes.JitterMode: EXPAND_SYMMETRIC_XY=6 SHRINK_SYMMETRIC_XY=7

message RandomCropImage
  min_object_covered: float = 1.0
  min_aspect_ratio: float = 0.75
  max_aspect_ratio: float = 1.33
  min_area: float = 0.1
  max_area: float = 1.0
  overlap_thresh: float = 0.3
  clip_boxes: bool = true
  random_coef: float = 0.0

message RandomPadImage
  min_image_height: int32
  min_image_width: int32
  max_image_height: int32
  max_image_width: int32
  pad_color: float*

message RandomAbsolutePadImage
  max_height_padding: int32
  max_width_padding: int32
  pad_color: float*

message RandomCropPadImage
  min_object_covered: float = 1.0
  min_aspect_ratio: float = 0.75
  max_aspect_ratio: float = 1.33
  min_area: float = 0.1
  max_area: float = 1.0
  overlap_thresh: float = 0.3
  clip_boxes: bool = true
  random_coef: float = 0.0
  min_padded_size_ratio: float*
  max_padded_size_ratio: float*
  pad_color: float*

message RandomCropToAspectRatio
  aspect_ratio: float = 1.0
  overlap_thresh: float = 0.3
  clip_boxes: bool = true

message RandomBlackPatches
  max_black_patches: int32 = 10
  probability: float = 0.5
  size_to_image_ratio: float = 0.1

message RandomResizeMethod
  target_height: int32
  target_width: int32

message RGBtoGray

message ScaleBoxesToPixelCoordinates

message ResizeImage
  new_height: int32
  new_width: int32
  method: ResizeImage.Method = BILINEAR

enum ResizeImage.Method: AREA=1 BICUBIC=2 BILINEAR=3 NEAREST_NEIGHBOR=4

message SubtractChannelMean
  means: float*

message SSDRandomCropOperation
  min_object_covered: float
  min_aspect_ratio: float
  max_aspect_ratio: float
  min_area: float
  max_area: float
  overlap_thresh: float
  clip_boxes: bool = true
  random_coef: float

message SSDRandomCrop
  operations: SSDRandomCropOperation*

message SSDRandomCropPadOperation
  min_object_covered: float
  min_aspect_ratio: float
  max_aspect_ratio: float
  min_area: float
  max_area: float
  overlap_thresh: float
  clip_boxes: bool = true
  random_coef: float
  min_padded_size_ratio: float*
  max_padded_size_ratio: float*
  pad_color_r: float
  pad_color_g: float
  pad_color_b: float

message SSDRandomCropPad
  operations: SSDRandomCropPadOperation*

message SSDRandomCropFixedAspectRatioOperation
  min_object_covered: float
  min_area: float
  max_area: float
  overlap_thresh: float
  clip_boxes: bool = true
  random_coef: float

message SSDRandomCropFixedAspectRatio
  operations: SSDRandomCropFixedAspectRatioOperation*
  aspect_ratio: float = 1.0

message SSDRandomCropPadFixedAspectRatioOperation
  min_object_covered: float
  min_aspect_ratio: float
  max_aspect_ratio: float
  min_area: float
  max_area: float
  overlap_thresh: float
  clip_boxes: bool = true
  random_coef: float

message SSDRandomCropPadFixedAspectRatio
  operations: SSDRandomCropPadFixedAspectRatioOperation*
  aspect_ratio: float = 1.0
  min_padded_size_ratio: float*
  max_padded_size_ratio: float*

message ConvertClassLogitsToSoftmax
  temperature: float = 1.0

message RandomSelfConcatImage
  concat_vertical_probability: float = 0.1
  concat_horizontal_probability: float = 0.1

message AutoAugmentImage
  policy_name: string = "v0"

message DropLabelProbabilistically
  label: int32
  drop_probability: float = 1.0

message RemapLabels
  original_labels: int32*
  new_label: int32

message RandomJpegQuality
  random_coef: float = 0.0
  min_jpeg_quality: int32 = 0
  max_jpeg_quality: int32 = 100

message RandomDownscaleToTargetPixels
  random_coef: float = 0.0
  min_target_pixels: int32 = 300000
  max_target_pixels: int32 = 500000

message RandomPatchGaussian
  random_coef: float = 0.0
  min_patch_size: int32 = 1
  max_patch_size: int32 = 250
  min_gaussian_stddev: float = 0.0
  max_gaussian_stddev: float = 1.0

message RandomSquareCropByScale
  max_border: int32 = 128
  scale_min: float = 0.6
  scale_max: float = 1.3
  num_scales: int32 = 8

message RandomScaleCropAndPadToSquare
  output_size: int32 = 512
  scale_min: float = 0.1
  scale_max: float = 2.0

message AdjustGamma
  gamma: float = 1.0
  gain: float = 1.0
"""
