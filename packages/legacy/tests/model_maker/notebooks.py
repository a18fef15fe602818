"""The cells of the two notebooks, letter for letter but for imports, downloads and drawings.

TFLite: tensorflow/lite/g3doc/models/modify/model_maker/object_detection.ipynb (tensorflow 2.8).
MediaPipe: examples/customization/object_detector.ipynb (google-ai-edge/mediapipe-samples).

What is replaced: the import of each package by the package of stillbox; the address of the CSV file
by its local name; `wget` and `unzip` by a folder that is there; TensorFlow's interpreter, which is
LiteRT's, and TensorFlow's reading of images by Pillow's.
"""

TFLITE = """
import numpy as np
import os

from stillbox_legacy.model_maker.tflite_model_maker.config import QuantizationConfig
from stillbox_legacy.model_maker.tflite_model_maker.config import ExportFormat
from stillbox_legacy.model_maker.tflite_model_maker import model_spec
from stillbox_legacy.model_maker.tflite_model_maker import object_detector

spec = model_spec.get('efficientdet_lite0')
train_data, validation_data, test_data = object_detector.DataLoader.from_csv('salads_ml_use.csv')
model = object_detector.create(train_data, model_spec=spec, batch_size=8, train_whole_model=True, \
validation_data=validation_data)
metrics = model.evaluate(test_data)
model.export(export_dir='.')
tflite_metrics = model.evaluate_tflite('model.tflite', test_data)
"""

TFLITE_INFERENCE = """
import cv2
from ai_edge_litert.interpreter import Interpreter
from PIL import Image

model_path = 'model.tflite'

# Load the labels into a list
classes = ['???'] * model.model_spec.config.num_classes
label_map = model.model_spec.config.label_map
for label_id, label_name in label_map.as_dict().items():
  classes[label_id-1] = label_name

# Define a list of colors for visualization
COLORS = np.random.randint(0, 255, size=(len(classes), 3), dtype=np.uint8)

def preprocess_image(image_path, input_size):
  original_image = np.asarray(Image.open(image_path).convert('RGB'))
  resized_img = cv2.resize(original_image, tuple(int(side) for side in input_size[::-1]))
  return resized_img[np.newaxis, :].astype(np.uint8), original_image


def detect_objects(interpreter, image, threshold):
  signature_fn = interpreter.get_signature_runner()

  # Feed the input image to the model
  output = signature_fn(images=image)

  # Get all outputs from the model
  count = int(np.squeeze(output['output_0']))
  scores = np.squeeze(output['output_1'])
  classes = np.squeeze(output['output_2'])
  boxes = np.squeeze(output['output_3'])

  results = []
  for i in range(count):
    if scores[i] >= threshold:
      result = {
        'bounding_box': boxes[i],
        'class_id': classes[i],
        'score': scores[i]
      }
      results.append(result)
  return results


def run_odt_and_draw_results(image_path, interpreter, threshold=0.5):
  # Load the input shape required by the model
  _, input_height, input_width, _ = interpreter.get_input_details()[0]['shape']

  # Load the input image and preprocess it
  preprocessed_image, original_image = preprocess_image(
      image_path,
      (input_height, input_width)
    )

  # Run object detection on the input image
  results = detect_objects(interpreter, preprocessed_image, threshold=threshold)

  # Plot the detection results on the input image
  original_image_np = original_image.astype(np.uint8)
  for obj in results:
    ymin, xmin, ymax, xmax = obj['bounding_box']
    xmin = int(xmin * original_image_np.shape[1])
    xmax = int(xmax * original_image_np.shape[1])
    ymin = int(ymin * original_image_np.shape[0])
    ymax = int(ymax * original_image_np.shape[0])

    # Find the class index of the current object
    class_id = int(obj['class_id'])

    # Draw the bounding box and label on the image
    color = [int(c) for c in COLORS[class_id]]
    cv2.rectangle(original_image_np, (xmin, ymin), (xmax, ymax), color, 2)
    y = ymin - 15 if ymin - 15 > 15 else ymin + 15
    label = "{}: {:.0f}%".format(classes[class_id], obj['score'] * 100)
    cv2.putText(original_image_np, label, (xmin, y),
        cv2.FONT_HERSHEY_SIMPLEX, 0.5, color, 2)

  # Return the final image
  original_uint8 = original_image_np.astype(np.uint8)
  return original_uint8

interpreter = Interpreter(model_path=model_path)
interpreter.allocate_tensors()

# Run inference and draw detection result on the local copy of the original file
detection_result_image = run_odt_and_draw_results(
    TEMP_FILE,
    interpreter,
    threshold=DETECTION_THRESHOLD
)
"""

TFLITE_ADVANCED = """
model.export(export_dir='.', export_format=[ExportFormat.SAVED_MODEL, ExportFormat.LABEL])
config = QuantizationConfig.for_float16()
model.export(export_dir='.', tflite_filename='model_fp16.tflite', quantization_config=config)

spec = model_spec.get('efficientdet_lite0')
spec.config.var_freeze_expr = 'efficientnet'
model = object_detector.create(train_data, model_spec=spec, epochs=10, batch_size=8, \
validation_data=validation_data)
"""

MEDIAPIPE = """
import os
import json

from stillbox_legacy.model_maker.mediapipe_model_maker import object_detector

train_dataset_path = "android_figurine/train"
validation_dataset_path = "android_figurine/validation"

with open(os.path.join(train_dataset_path, "labels.json"), "r") as f:
  labels_json = json.load(f)
for category_item in labels_json["categories"]:
  print(f"{category_item['id']}: {category_item['name']}")

train_data = object_detector.Dataset.from_coco_folder(train_dataset_path, \
cache_dir="od_data/train")
validation_data = object_detector.Dataset.from_coco_folder(validation_dataset_path, \
cache_dir="od_data/validation")
print("train_data size: ", train_data.size)
print("validation_data size: ", validation_data.size)

spec = object_detector.SupportedModels.MOBILENET_MULTI_AVG
hparams = object_detector.HParams(export_dir='exported_model')
options = object_detector.ObjectDetectorOptions(
    supported_model=spec,
    hparams=hparams
)

model = object_detector.ObjectDetector.create(
    train_data=train_data,
    validation_data=validation_data,
    options=options)

loss, coco_metrics = model.evaluate(validation_data, batch_size=4)
print(f"Validation loss: {loss}")
print(f"Validation coco metrics: {coco_metrics}")

model.export_model()

qat_hparams = object_detector.QATHParams(learning_rate=0.3, batch_size=4, epochs=10, \
decay_steps=6, decay_rate=0.96)
model.quantization_aware_training(train_data, validation_data, qat_hparams=qat_hparams)
qat_loss, qat_coco_metrics = model.evaluate(validation_data)
print(f"QAT validation loss: {qat_loss}")
print(f"QAT validation coco metrics: {qat_coco_metrics}")

new_qat_hparams = object_detector.QATHParams(learning_rate=0.9, batch_size=4, epochs=15, \
decay_steps=5, decay_rate=0.96)
model.restore_float_ckpt()
model.quantization_aware_training(train_data, validation_data, qat_hparams=new_qat_hparams)
qat_loss, qat_coco_metrics = model.evaluate(validation_data)
print(f"QAT validation loss: {qat_loss}")
print(f"QAT validation coco metrics: {qat_coco_metrics}")

model.export_model('model_int8_qat.tflite')

from stillbox_legacy.model_maker.mediapipe_model_maker import quantization

quantization_config = quantization.QuantizationConfig.for_float16()
model.restore_float_ckpt()
model.export_model(model_name="model_fp16.tflite", quantization_config=quantization_config)
"""
