import subprocess
import sys

import pytest

import tfbench.__main__ as program
from results.schema import BatchNorm, Case, Device, Optimizer
from results.schema.networks import NETWORKS
from tests.support import PROJECT
from tfbench.flags import FlagsError, parse


def test_defaults_follow_the_precision_and_the_networks_authors():
    batches = {
        precision: parse(["--model=resnet50", f"--precision={precision}"]).case for precision in ("fp32", "bf16")
    }
    assert {name: (case.batch_per_gpu, case.device) for name, case in batches.items()} == {
        "fp32": (128, Device.GPU),
        "bf16": (256, Device.GPU),
    }
    assert parse(["--model=bert_large", "--optimizer=momentum"]).case.name.endswith("-momentum-w10s100")
    assert Case(model="bert_large", batch_norm=BatchNorm.NONE) == Case(model="bert_large")
    own = [parse([f"--model={name}"]).case for name in NETWORKS]
    assert {case.model for case in own if case.optimizer is Optimizer.ADAMW} == {"bert_large", "gpt2_small", "vit_b16"}
    without = {"alexnet", "bert_large", "googlenet", "gpt2_small", "vgg16", "vit_b16"}
    assert {case.model for case in own if case.batch_norm is BatchNorm.NONE} == without


def test_flags_can_come_from_a_file(tmp_path):
    file = tmp_path / "flags"
    file.write_text("--model=resnet152\n# a comment\n--batch_size=5\n")
    case = parse([f"--flagfile={file}", "--num_batches=30", "--num_warmup_batches=4"]).case
    assert (case.model, case.batch_per_gpu) == ("resnet152", 5)
    assert (case.num_steps, case.warmup_steps) == (30, 4), "names of tf_cnn_benchmarks"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], ["--model", "resnet50", "googlenet"]),
        (["--model=resnet51"], ["resnet51", "resnet50"]),
        (["--model=resnet50", "--batch_size=0"], ["batch_size", "0"]),
        (["--model=resnet50", "--num_steps=100001"], ["num_steps", "100001"]),
        (["--model=resnet50", "--precison=fp16"], ["precison", "precision"]),
        (["--model=resnet50", "extra"], ["extra"]),
        (["--model=resnet50", "--max_seconds=inf"], ["--max_seconds"]),
        (["--model=resnet50", "--min_seconds=nan"], ["--min_seconds"]),
        (["--model=resnet50", "--max_cooling_seconds=-1"], ["--max_cooling_seconds"]),
        (["--model=resnet50", "--flagfile=/does/not/exist"], ["/does/not/exist"]),
    ],
)
def test_a_bad_flag_is_one_line_that_names_it(arguments, words):
    with pytest.raises(FlagsError) as caught:
        parse(arguments)
    message = str(caught.value)
    assert "\n" not in message
    assert all(word in message for word in words), message


@pytest.mark.parametrize(
    ("argument", "words"),
    [
        ("--use_fp16", "use --precision=fp16"),
        ("--data_name=imagenet", "use --data=tfrecord --data_dir=FOLDER"),
        ("--job_name=worker", "use --num_hosts and the variable TF_CONFIG"),
    ],
)
def test_a_flag_of_tf_cnn_benchmarks_has_its_counterpart(argument, words):
    with pytest.raises(FlagsError) as caught:
        parse(["--model=resnet50", argument])
    assert words in str(caught.value) and "Did you mean" not in str(caught.value)


@pytest.mark.parametrize("output", ["folder", "file/below/record.json", "/dev/null", "n" * 250, "a\0b"])
def test_an_output_that_cannot_be_written_is_refused_before_measuring(tmp_path, output, monkeypatch, capsys):
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("{}")
    monkeypatch.setattr(program, "measure", lambda _: pytest.fail("measured"))
    assert program.main(["--model=resnet50", f"--output={tmp_path / output}"]) == 2
    assert "--output=" in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["file", "folder"]
    monkeypatch.setattr(program, "measure", lambda _: 0)
    for name in ("file", "new/folder/record.json"):
        assert program.main(["--model=resnet50", f"--output={tmp_path / name}"]) == 0
    assert (tmp_path / "file").read_text() == "{}" and list((tmp_path / "new/folder").iterdir()) == []


def test_help_is_printed_without_importing_tensorflow(monkeypatch):
    monkeypatch.setenv("TFBENCH_PROGRAM", "tfbench measure")
    code = "import sys; from tfbench.__main__ import main; assert main(['--help']) == 0; "
    code += "assert 'tensorflow' not in sys.modules and 'keras' not in sys.modules"
    printed = subprocess.check_output([sys.executable, "-c", code], cwd=PROJECT, text=True)
    assert all(name in printed for name in ("--model", "--output", "--max_seconds", "(tfbench make-dataset makes one)"))
