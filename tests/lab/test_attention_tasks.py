import pytest
import torch

from sparring.lab.registry import task
from sparring.lab.tasks.attention.data import NEGATIVE, POSITIVE, made_up, trimmed


def prepared(name, method="plain", scale="tiny", **overrides):
    chosen = task(name)
    setting = chosen.setting(method, scale, **overrides)
    data = chosen.load(setting)
    torch.manual_seed(0)
    return chosen, setting, data, chosen.build(setting, data)


def stepped(chosen, method, setting, data, model, examples):
    before = [p.detach().clone() for p in model.parameters()]
    for loss in method.objective(model, setting, data).steps(*data.train.batch(slice(0, examples))):
        loss.backward()
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    return any(not torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


def test_every_method_takes_a_step():
    chosen, _, data, model = prepared("sst")
    for method in chosen.methods:
        assert stepped(chosen, method, chosen.setting(method.name), data, model, 4), method.name


@pytest.mark.parametrize(
    ("name", "method"), [("sst", "attention_at"), ("babi-1", "attention_iat"), ("babi-3", "word_iat")]
)
def test_a_task_is_measured_and_drawn(name, method):
    chosen, setting, data, model = prepared(name, method, overrides={"questions": 50} if name != "sst" else None)
    assert stepped(chosen, chosen.method(method), setting, data, model, 2)
    small = type(data.validation)(*data.validation.batch(slice(0, 7)), data.validation.collate)
    figures = chosen.evaluate(model.eval(), small, setting)
    assert {"f1", "accuracy", "pearson", "kendall", "pearson_loss", "kendall_loss"} == set(figures)
    assert 0 <= figures["accuracy"] <= 100
    assert abs(figures["pearson"]) <= 1
    attention, gradient = chosen.figures(model, data, setting)
    assert len(attention["items"]) == len(gradient["items"]) == 8
    assert all(len(item["words"]) == len(item["weights"]) for item in attention["items"])


def test_f1_agrees_with_scikit_learn():
    metrics = pytest.importorskip("sklearn.metrics", reason="the lab extra is not installed")
    chosen, setting, data, model = prepared("sst")
    figures = chosen.evaluate(model.eval(), data.validation, setting)
    guess = model(data.validation.inputs).argmax(-1)
    assert figures["f1"] == pytest.approx(100 * metrics.f1_score(data.validation.targets, guess))


def test_made_up_sentences_hold_words_of_their_label_only():
    texts, labels = made_up(200, 0)
    for words, label in zip(texts, labels, strict=True):
        assert set(words) & set(POSITIVE if label else NEGATIVE)
        assert not set(words) & set(NEGATIVE if label else POSITIVE)
    assert made_up(5, 0) == (texts[:5], labels[:5])


def test_answers_that_a_story_does_not_mention_are_ruled_out_and_the_right_one_never_is():
    _, _, data, model = prepared("babi-2", overrides={"questions": 100})
    inputs, targets = data.train.batch(slice(0, 50))
    paragraph, _, mentioned = inputs
    assert mentioned[torch.arange(50), targets].all()
    assert (model(*inputs).softmax(-1)[~mentioned] == 0).all()
    words = data.extra["vocabulary"].words
    for row in range(50):
        story = {words[k] for k in paragraph[row].tolist()}
        assert [answer in story for answer in data.extra["labels"]] == mentioned[row].tolist()


def test_trimming_leaves_out_columns_of_padding_only():
    tokens = torch.tensor([[1, 2, 0, 0], [3, 0, 0, 0]])
    assert trimmed(tokens, None)[0].tolist() == [[1, 2], [3, 0]]
    assert trimmed(torch.zeros(2, 3, dtype=torch.long), None)[0].shape == (2, 1)
    entities = torch.ones(2, 6, dtype=torch.bool)
    assert trimmed((tokens, entities), None)[0][1] is entities


def test_real_trees_have_the_published_counts(data_folder):
    _, _, data, model = prepared("sst", scale="small", data=data_folder)
    assert (len(data.train), len(data.validation), len(data.test)) == (6920, 872, 1821)
    assert data.extra["coverage"] > 0.5
    assert (model.embedding.weight[0] == 0).all()


@pytest.mark.long
def test_a_model_trained_on_told_stories_answers_the_published_ones(data_folder):
    _, setting, data, model = prepared("babi-1", scale="small", data=data_folder)
    assert (setting["stories"], setting["tested"], len(data.test)) == ("generated", "published", 1000)
    optimiser = torch.optim.Adam(
        model.parameters(), lr=setting["lr"], weight_decay=setting["weight_decay"], amsgrad=True
    )
    objective = task("babi-1").method("plain").objective(model, setting, data)

    def accuracy(split):
        with torch.no_grad():
            return sum(int((model(*x).argmax(-1) == y).sum()) for x, y in split.batches(250)) / len(split)

    for epoch in range(setting["epochs"]):
        order = torch.randperm(len(data.train), generator=torch.Generator().manual_seed(epoch))
        for index in order.split(setting["batch"]):
            for loss in objective.steps(*data.train.batch(index)):
                optimiser.zero_grad()
                loss.backward()
                optimiser.step()
        checked = accuracy(data.validation)
        print(f"epoch {epoch + 1}: told {100 * checked:.1f} %, published {100 * accuracy(data.test):.1f} %")
        if checked > 0.995:
            break
    assert accuracy(data.test) > 0.98
