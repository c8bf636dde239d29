"""``marlogue evaluate`` and ``marlogue rollout``: what a team does on an environment."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from marlogue.agents import LLMPolicy, SamplingParams
from marlogue.agents.trust import TRUST
from marlogue.algorithms import AACTrainer, Sample, load_team
from marlogue.algorithms.building import (
    build_policies,
    check_model_config,
    model_kwargs,
    resolve_devices,
)
from marlogue.algorithms.collect import Collector, Item
from marlogue.algorithms.environments import Environments
from marlogue.algorithms.evaluation import Evaluator
from marlogue.algorithms.items import EnvOrFactory
from marlogue.algorithms.streams import EVAL
from marlogue.cli.building import make_played, make_trainer, team_arguments
from marlogue.cli.errors import UsageError, as_usage_errors
from marlogue.cli.known import is_known
from marlogue.cli.lookup import resolve, search_here
from marlogue.cli.options import Own, Settings, read
from marlogue.envs import BatchRunner, Start
from marlogue.envs.text_env import text_env_inside

TEAM: Own = {
    "team": (
        str | None,
        None,
        "folder of a saved team; its config.yaml is read where no --config is given. Without it "
        "the models of the configuration play, untrained",
    ),
}
_ABOUT = ("team.json", "aac.json")  # in the folder of a saved team
SPLIT: Own = {
    "split": (
        str,
        "eval",
        "eval, or train: which environment or dataset of the configuration is played",
    ),
}


def evaluate(words: Sequence[str]) -> None:
    """Play the first ``eval_num_samples`` rows (AAC: ``eval_episodes``) and print the figures.

    Raises:
        UsageError: when the configuration cannot be used.
    """
    settings = read_settings("evaluate", words, {**TEAM, **SPLIT})
    metrics = _of_networks(settings) if settings.algorithm == "aac" else _of_models(settings)
    for name, value in metrics.items():
        print(f"{name.removeprefix('eval/'):40s} {value:.4f}")


def _of_networks(settings: Settings) -> dict[str, float]:
    with as_usage_errors():
        trainer = make_trainer(settings, [], None)
        assert isinstance(trainer, AACTrainer)
        if settings["team"] is not None:
            trainer.load_model(settings["team"])
    return trainer.evaluate(trainer.env if _plays_training(settings) else None)


def _of_models(settings: Settings) -> dict[str, float]:
    played, team = prepare(settings)
    args = played.args
    env = choose_env(settings, played)
    params = args.sampling(args.eval_temperature)
    evaluator = Evaluator(
        env,
        _collector(env, team, params, args),
        num_samples=args.eval_num_samples,
        batch_size=args.eval_batch_size,
        seed=args.seed,
    )
    return evaluator.run(resolve(settings["metrics_callback"], "metrics_callback"))


def rollout(words: Sequence[str]) -> None:
    """Play given rows and print what was said.

    Raises:
        UsageError: when the configuration cannot be used.
    """
    own: Own = {
        **TEAM,
        **SPLIT,
        "rows": (str, "0", "rows to play, as in 0,3 (without a dataset: seeds of the resets)"),
        "generations": (int, 1, "episodes per row"),
    }
    settings = read_settings("rollout", words, own)
    played, team = prepare(settings)
    args = played.args
    env = choose_env(settings, played)
    rows = _row_numbers(settings["rows"])
    if settings["generations"] < 1:
        raise UsageError(f"generations ({settings['generations']}) must be at least 1")
    has_rows = text_env_inside(env) is not None
    items = [
        Item(row, Start(options={"row": row}) if has_rows else Start(seed=row)) for row in rows
    ]
    collector = _collector(env, team, args.sampling(args.eval_temperature), args)
    with as_usage_errors():
        samples_by_item = collector.collect(items, settings["generations"])
    for samples in samples_by_item:
        print(transcript(samples))


def read_settings(command: str, words: Sequence[str], own: Own) -> Settings:
    """Read the configuration, which is the team's own where none is given.

    Raises:
        UsageError: when the configuration cannot be used.
    """
    completed = _with_own_config(words)
    settings = read(command, completed, own)
    # Modules are looked for beside a file that the user named; what lies with a team stays there.
    search_here(*(settings.folders if completed == list(words) else ()))
    return settings


def prepare(settings: Settings) -> tuple[Environments, list[LLMPolicy]]:
    """Make what is played and load who plays.

    Raises:
        UsageError: when the configuration cannot be used, or the team does not fit.
    """
    if settings.algorithm == "aac":
        raise UsageError(
            "algorithm (aac) must be maac or iac: a team of networks says nothing; "
            "marlogue evaluate measures it, and marlogue attention shows who attends to whom"
        )
    with as_usage_errors():
        played = make_played(settings)
        team = _team(settings, played)
    if len(team) != len(played.agents):
        raise UsageError(
            f"team ({len(team)} agents) must be as many as the environment has "
            f"({len(played.agents)}: {', '.join(played.agents)})"
        )
    return played, team


def choose_env(settings: Settings, played: Environments) -> EnvOrFactory:
    """The environment that ``split`` names."""
    return played.train if _plays_training(settings) or played.eval is None else played.eval


def _plays_training(settings: Settings) -> bool:
    if settings["split"] not in ("eval", "train"):
        raise UsageError(f"split ({settings['split']}) must be eval or train")
    return bool(settings["split"] == "train")


def transcript(samples: Sequence[Sample]) -> str:
    """What was asked, said and earned in the episodes of one row."""
    lines = []
    episode, turn = -1, -1
    for sample in samples:
        if sample.generation_idx != episode:
            episode, turn = sample.generation_idx, -1
            lines.append(f"=== row {sample.item_idx}, generation {episode} ===")
        if sample.turn_idx != turn:
            turn = sample.turn_idx
            lines.append(f"--- turn {turn + 1} ---")
        without = "abstained" if sample.reward_error is None else "dropped"
        reward = without if sample.abstained else f"{sample.reward:.3f}"
        cut = ", cut at max_new_tokens" if sample.action.truncated else ""
        lines += [
            f"{sample.agent} is asked: {sample.prompt}",
            f"{sample.agent} answers:  {sample.completion}",
            f"    (reward {reward}{cut})",
        ]
    return "\n".join(lines)


def _collector(
    env: EnvOrFactory, team: Sequence[LLMPolicy], params: SamplingParams, args: Any
) -> Collector:
    return Collector(
        BatchRunner(env), team, params, max_turns=args.num_turns, stream=(args.seed, EVAL)
    )


def _team(settings: Settings, played: Environments) -> list[LLMPolicy]:
    """The saved team, or the configuration's models as they are."""
    args = played.args
    if settings["team"] is None:
        model_config = check_model_config(settings["model_config"])
        made = {"agents": None, "agent_model": None, "tokenizer": None}
        made |= team_arguments(settings, len(played.agents))
        return build_policies(args, model_config=model_config, **made)
    loading = model_kwargs(check_model_config(settings["model_config"]), "model_kwargs")
    team = load_team(settings["team"], trust_remote_code=loading.get(TRUST, False))
    devices = resolve_devices(args.agent_devices, len(team), "agent_devices")
    for policy, device in zip(team, devices, strict=True):
        policy.model.to(device)  # type: ignore[arg-type]
    return team


def _with_own_config(words: Sequence[str]) -> list[str]:
    """The command line, with the configuration that lies with the team put first."""
    if any(word.partition("=")[0] == "--config" for word in words):
        return list(words)
    for position, word in enumerate(words):
        option, equals, value = word.partition("=")
        if option == "--team":
            folder = value if equals else "".join(words[position + 1 : position + 2])
            if not any((Path(folder) / name).exists() for name in _ABOUT):
                raise UsageError(f"team ({folder}) must be a folder that a team was saved to")
            file = Path(folder) / "config.yaml"
            if file.exists():
                _refuse_unknown(file)
                return ["--config", str(file), *words]
    return list(words)


def _refuse_unknown(file: Path) -> None:
    if not is_known(file):
        raise UsageError(
            f"team ({file.parent}) comes with a {file.name} that no training here has left there "
            "as it is; a configuration can name any code, which is then run. If you trust it, name "
            f"it: --config {shlex.quote(str(file))}"
        )


def _row_numbers(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise UsageError(f"rows ({text}) must be row numbers, as in 0,3") from None
