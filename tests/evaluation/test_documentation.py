import json
import re
from pathlib import Path

from stillbox.evaluation.coco_json import results_to_coco, truths_to_coco
from tests.evaluation.builders import result, truth

PAGE = Path(__file__).resolve().parents[2] / "docs" / "evaluation.md"


def test_the_programs_on_the_page_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    box = [[10, 10, 60, 60]]
    Path("truth.json").write_text(json.dumps(truths_to_coco([truth("1", box)], {1: "cat"})))
    Path("detections.json").write_text(json.dumps(results_to_coco([result("1", box, [0.9])])))
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    for block in blocks:
        exec(compile(block, str(PAGE), "exec"), {})
    said = capsys.readouterr().out
    assert "AP50 1.000" in said
    assert "APl no ground truth of this size" in said
    assert Path("scenes/label_map.pbtxt").is_file()
