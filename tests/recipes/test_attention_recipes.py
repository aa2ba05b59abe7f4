import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import sparring as sp
from sparring import recipes
from sparring.lab.models.birnn import PairSequence, SingleSequence
from sparring.nn.attention import masked_softmax
from sparring.passes.one import Pass
from sparring.players.interpretable import row_sums

TOKENS = torch.tensor([[3, 4, 5, 6, 7], [8, 9, 2, 0, 0], [1, 4, 0, 0, 0]])
TARGETS = torch.tensor([0, 1, 1])
VALID = TOKENS != 0
EPSILON = 2.0


def build():
    torch.manual_seed(0)
    return SingleSequence(12, 5, 8).double()


def scores_of(model, tokens=TOKENS):
    return sp.perturbed_call(model, {sp.Scores("attention"): {}}, tokens, record=True)[1][sp.Scores("attention")][
        "attention"
    ]


def losses_at(model, shift, tokens=TOKENS, targets=TARGETS):
    return sp.cross_entropy(sp.perturbed_call(model, {sp.Scores("attention"): shift}, tokens), targets)


@pytest.fixture
def placed(monkeypatch):
    """Every perturbation that an objective's attached pass placed, in order."""
    seen = []
    run = Pass.run

    def spy(self, *args, **kwargs):
        outputs = run(self, *args, **kwargs)
        seen.append([slot.placed for slots in self.slots.values() for slot in slots])
        return outputs

    monkeypatch.setattr(Pass, "run", spy)
    return lambda: seen[-1]


def gradients(objective, *batch):
    return torch.autograd.grad(
        objective(*batch), list(objective.model.parameters()), allow_unused=True, materialize_grads=True
    )


def test_attention_at_follows_the_steepest_direction_found_by_finite_differences(placed):
    model = build()
    recipes.attention_at(model, sp.cross_entropy, at="attention", ball=sp.L2(EPSILON))(TOKENS, TARGETS)
    (shift,) = placed()
    h, slope = 1e-6, torch.zeros(3, 5, dtype=torch.double)
    with torch.no_grad():
        for t in range(5):
            step = torch.zeros(3, 5, dtype=torch.double)
            step[:, t] = h
            slope[:, t] = (losses_at(model, step) - losses_at(model, -step)) / (2 * h)
    assert (slope[~VALID] == 0).all()
    torch.testing.assert_close(shift, EPSILON * slope / slope.norm(dim=-1, keepdim=True), rtol=1e-6, atol=1e-7)
    torch.testing.assert_close(shift.norm(dim=-1), torch.full((3,), EPSILON, dtype=torch.double))
    assert (shift[~VALID] == 0).all()
    assert not shift.requires_grad


def test_the_objective_is_the_sum_of_equation_20_and_leaves_no_gradient_behind():
    """A released implementation calls backward() for the inner gradient, which turns the loss into 2 L + lambda L_adv."""
    model = build()
    objective = recipes.attention_at(model, sp.cross_entropy, at="attention", ball=sp.L2(EPSILON), weight=0.7)
    loss = objective(TOKENS, TARGETS)
    assert all(p.grad is None for p in model.parameters())
    loss.backward()
    found = [p.grad.clone() for p in model.parameters()]
    scores = scores_of(model)
    weights_to_loss = scores.detach().requires_grad_()
    with torch.no_grad():
        states, _ = model.encoder(model.embedding(TOKENS), VALID)
    pooled = (masked_softmax(weights_to_loss, VALID)[..., None] * states).sum(1)
    (g,) = torch.autograd.grad(sp.cross_entropy(model.head(pooled), TARGETS).sum(), weights_to_loss)
    shift = EPSILON * g / g.norm(dim=-1, keepdim=True)
    expected = sp.cross_entropy(model(TOKENS), TARGETS).mean() + 0.7 * losses_at(model, shift).mean()
    torch.testing.assert_close(loss, expected)
    for mine, theirs in zip(found, torch.autograd.grad(expected, list(model.parameters())), strict=True):
        torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize("reading", ["paper", "attached"])
def test_the_papers_iat_is_at_bit_for_bit(reading):
    model = build()
    plain = gradients(recipes.attention_at(model, sp.cross_entropy, ball=sp.L2(EPSILON)), TOKENS, TARGETS)
    other = gradients(
        recipes.attention_iat(model, sp.cross_entropy, ball=sp.L2(EPSILON), reading=reading), TOKENS, TARGETS
    )
    assert all(torch.equal(a, b) for a, b in zip(plain, other, strict=True))


def test_learning_through_the_differences_changes_no_parameter_gradient():
    """Attention iAT with difference vectors that are really attached, B x T x T and all, against the closed form."""
    model = build()
    tokens, targets = TOKENS[:1], TARGETS[:1]
    closed = gradients(
        recipes.attention_iat(model, sp.cross_entropy, ball=sp.L2(EPSILON), reading="attached"), tokens, targets
    )
    scores = scores_of(model, tokens)
    difference = scores[:, :, None] - scores[:, None, :]
    unit = difference / difference.norm(dim=-1, keepdim=True)
    alpha = torch.zeros_like(unit, requires_grad=True)
    inner = losses_at(model, (alpha * unit.detach()).sum(-1), tokens, targets).sum()
    (g,) = torch.autograd.grad(inner, alpha)
    shift = (EPSILON * g / g.norm() * unit).sum(-1)
    assert shift.requires_grad
    total = sp.cross_entropy(model(tokens), targets).mean() + losses_at(model, shift, tokens, targets).mean()
    naive = torch.autograd.grad(total, list(model.parameters()), materialize_grads=True, allow_unused=True)
    for a, b in zip(closed, naive, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("reading", ["per_word", "row_sum"])
def test_the_other_readings_place_what_they_say(reading, placed):
    model = build()
    leaf = torch.zeros(3, 5, dtype=torch.double, requires_grad=True)
    (g,) = torch.autograd.grad(losses_at(model, leaf).sum(), leaf)
    scores = scores_of(model).detach()
    recipes.attention_iat(model, sp.cross_entropy, ball=sp.L2(EPSILON), reading=reading)(TOKENS, TARGETS)
    (shift,) = placed()
    if reading == "per_word":
        torch.testing.assert_close(shift, EPSILON * g.sign())
    else:
        raw = g * row_sums(scores, VALID)
        torch.testing.assert_close(shift, EPSILON * raw / raw.norm(dim=-1, keepdim=True))


def test_attention_noise_lies_on_the_sphere_over_valid_positions(placed):
    recipes.attention_noise(build(), sp.cross_entropy, ball=sp.L2(EPSILON))(TOKENS, TARGETS)
    (shift,) = placed()
    torch.testing.assert_close(shift.norm(dim=-1), torch.full((3,), EPSILON, dtype=torch.double))
    assert (shift[~VALID] == 0).all()


RECIPES = {
    "at": recipes.attention_at,
    "iat": recipes.attention_iat,
    "vat": lambda model, loss, ball, **o: recipes.vat(model, loss, at=sp.Scores("**"), ball=ball, **o),
    "salt": lambda model, loss, ball, **o: recipes.salt(model, loss, at=sp.Scores("**"), ball=ball, start=1e-2, **o),
}


@pytest.mark.parametrize("name", ["at", "iat"])
def test_a_padded_batch_equals_the_single_sentences(name):
    model = build()
    objective = RECIPES[name](model, sp.cross_entropy, ball=sp.L2(EPSILON))
    together = objective(TOKENS, TARGETS)
    alone = [objective(TOKENS[k : k + 1, :n], TARGETS[k : k + 1]) for k, n in enumerate((5, 3, 2))]
    torch.testing.assert_close(together, torch.stack(alone).mean())


@pytest.mark.parametrize("name", RECIPES)
def test_the_encoder_runs_once(name, monkeypatch):
    model, calls = build(), []
    run = type(model.encoder.ahead).forward
    monkeypatch.setattr(type(model.encoder.ahead), "forward", lambda self, *a: (calls.append(self), run(self, *a))[1])
    RECIPES[name](model, sp.cross_entropy, ball=sp.L2(EPSILON))(TOKENS, TARGETS).backward()
    assert sum(module is model.encoder.ahead for module in calls) == 1


@pytest.mark.parametrize("name", ["vat", "salt"])
def test_divergences_at_the_scores_need_no_labels_and_find_more_than_noise(name):
    model = build()
    free = RECIPES[name](model, sp.cross_entropy, ball=sp.L2(EPSILON))
    penalty = free(TOKENS)
    noise = sp.Objective(model, sp.cross_entropy, sp.Term(sp.Scores(), sp.Noise(sp.L2(EPSILON)), sp.kl))
    assert penalty > torch.stack([noise(TOKENS) for _ in range(20)]).mean()
    penalty.backward()
    assert model.attention.project.weight.grad.abs().max() > 0


@pytest.mark.filterwarnings("ignore:.*the ball never binds")
def test_salt_at_the_scores_equals_brute_force_finite_differences():
    """d/d theta of KL at the follower's own response, through a follower that moves with theta."""
    model = build()
    objective = RECIPES["salt"](model, sp.cross_entropy, ball=sp.L2(EPSILON), update="raw", step_size=5.0)

    def value():
        torch.manual_seed(3)
        return objective(TOKENS)

    exact = torch.autograd.grad(value(), model.attention.compare.weight)[0]
    weight, h = model.attention.compare.weight, 1e-6
    brute = torch.zeros_like(weight)
    for k in range(weight.shape[1]):
        ends = []
        for sign in (1, -1):
            with torch.no_grad():
                weight[0, k] += sign * h
            ends.append(value().item())
            with torch.no_grad():
                weight[0, k] -= sign * h
        brute[0, k] = (ends[0] - ends[1]) / (2 * h)
    torch.testing.assert_close(exact, brute, rtol=1e-5, atol=1e-8)


def test_salt_back_ends_agree_at_the_scores():
    model = build()
    found = []
    for backend in ("autograd", "finite_difference"):
        objective = RECIPES["salt"](model, sp.cross_entropy, ball=sp.L2(EPSILON), unroll=backend)
        torch.manual_seed(3)
        found.append(torch.cat([g.flatten() for g in gradients(objective, TOKENS)]))
    assert (found[0] - found[1]).norm() < 1e-2 * found[0].norm()


def test_pair_models_are_perturbed_over_their_paragraph(placed):
    torch.manual_seed(0)
    model = PairSequence(12, 5, 8, 4).double()
    question = torch.tensor([[2, 3], [4, 0], [5, 6]])
    entities = torch.tensor([[True, True, False, False]]).expand(3, 4)
    objective = recipes.attention_iat(model, sp.cross_entropy, at="attention", ball=sp.L2(EPSILON))
    objective((TOKENS, question, entities), TARGETS).backward()
    (shift,) = placed()
    assert shift.shape == TOKENS.shape
    assert all(torch.isfinite(p.grad).all() for p in model.parameters())
    vat = recipes.vat(
        model, sp.cross_entropy, at=sp.Scores("attention")
    )  # masked answers must not poison the divergence
    assert torch.isfinite(vat((TOKENS, question, entities)))


@pytest.mark.parametrize("name", RECIPES)
def test_empty_and_one_word_rows_train_without_nan(name):
    model = build()
    tokens = torch.tensor([[0, 0, 0], [3, 0, 0], [4, 5, 6]])
    loss = RECIPES[name](model, sp.cross_entropy, ball=sp.L2(EPSILON))(tokens, TARGETS)
    loss.backward()
    assert torch.isfinite(loss)
    assert all(torch.isfinite(p.grad).all() for p in model.parameters())


@pytest.mark.parametrize("reading", ["paper", "attached", "per_word", "row_sum"])
def test_iat_on_a_long_text_makes_no_tensor_of_all_pairs(reading):
    class Largest(TorchDispatchMode):
        entries = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            result = func(*args, **(kwargs or {}))
            self.entries = max([self.entries, *(x.numel() for x in tree_leaves(result) if isinstance(x, torch.Tensor))])
            return result

    torch.manual_seed(0)
    model = SingleSequence(12, 4, 8, encoder="cnn")
    tokens = torch.randint(1, 12, (2, 800))
    objective = recipes.attention_iat(model, sp.cross_entropy, at="attention", reading=reading)
    with Largest() as seen:
        objective(tokens, TARGETS[:2]).backward()
    assert seen.entries < 20 * tokens.numel()  # all pairs would be 800 times as many


def test_word_at_and_word_iat_perturb_words_but_no_padding(placed):
    model = build()
    word_at = recipes.adversarial_training(model, sp.cross_entropy, at=sp.Words("embedding"), ball=sp.L2(5.0))
    for objective, epsilon in ((word_at, 5.0), (recipes.word_iat(model, sp.cross_entropy, neighbours=3), 15.0)):
        objective(TOKENS, TARGETS)
        (shift,) = placed()
        torch.testing.assert_close(shift.flatten(1).norm(dim=-1), torch.full((3,), epsilon, dtype=torch.double))
        assert (shift[~VALID] == 0).all()


def test_word_directions_raise_the_loss():
    model = build()
    objective = recipes.word_iat(model, sp.cross_entropy, ball=sp.L2(0.1), neighbours=None)
    objective(TOKENS, TARGETS)
    assert objective.diagnostics["word_iat/penalty"] > objective.diagnostics["clean_loss"]


def test_word_directions_need_one_vocabulary():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.source, self.target = nn.Embedding(20, 4), nn.Embedding(20, 4)

    with pytest.raises(ValueError, match="need one vocabulary, found source, target"):
        recipes.word_iat(Two(), sp.cross_entropy, at="*")


# -- Hugging Face -----------------------------------------------------------------------------------------------------


def bert(kernel):
    transformers = pytest.importorskip("transformers", reason="the hf extra is not installed")
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=30, hidden_size=8, num_hidden_layers=2, num_attention_heads=2, intermediate_size=16,
        max_position_embeddings=16, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, attn_implementation=kernel,
    )  # fmt: skip
    return transformers.BertForSequenceClassification(config).double()


@pytest.mark.parametrize("name", RECIPES)
def test_a_hugging_face_bert_trains_the_same_with_both_kernels(name, placed):
    inputs = {"input_ids": TOKENS, "attention_mask": VALID.long()}
    found = []
    for kernel in ("eager", "sdpa"):
        objective = RECIPES[name](bert(kernel), sp.cross_entropy, ball=sp.L2(EPSILON))
        torch.manual_seed(1)
        found.append(torch.cat([g.flatten() for g in gradients(objective, inputs, TARGETS)]))
        shifts = [shift.detach() for shift in placed()]
        pairs = (VALID[:, None, :, None] & VALID[:, None, None, :]).expand(3, 2, 5, 5)
        for shift in shifts:
            lengths = shift.flatten(1).norm(dim=-1) / EPSILON
            assert (lengths > 0.99).all()  # SALT starts beside the clean point, so its step may end just inside
            assert (lengths < 1 + 1e-9).all()
            assert (shift[~pairs] == 0).all()
    torch.testing.assert_close(found[0], found[1], rtol=1e-7, atol=1e-10)


@pytest.mark.parametrize("name", ["at", "vat"])
@pytest.mark.parametrize("kernel", ["eager", "sdpa"])
def test_gradient_checkpointing_changes_nothing(kernel, name):
    inputs, found = {"input_ids": TOKENS, "attention_mask": VALID.long()}, []
    for checkpointing in (False, True):
        model = bert(kernel).train()
        if checkpointing:
            model.gradient_checkpointing_enable({"use_reentrant": False})
        objective = RECIPES[name](model, sp.cross_entropy, ball=sp.L2(EPSILON))
        torch.manual_seed(1)
        objective(inputs, TARGETS).backward()
        found.append(torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]))
    torch.testing.assert_close(found[0], found[1])


def test_a_ball_per_query_row_on_bert(placed):
    objective = recipes.attention_at(
        bert("eager"), sp.cross_entropy, at=sp.Scores(layers=(-1,)), ball=sp.L2(EPSILON, rows=True)
    )
    objective({"input_ids": TOKENS, "attention_mask": VALID.long()}, TARGETS)
    (shift,) = placed()
    lengths = shift.norm(dim=-1)  # (B, heads, queries); in the last layer only the first query reaches the classifier
    torch.testing.assert_close(lengths[:, :, 0], torch.full((3, 2), EPSILON, dtype=torch.double))
    assert (lengths[:, :, 1:] == 0).all()
