"""A new environment: one file with a dataset, a reward and `parallel_env`, and a name for it.

    python examples/extending/environment.py
    python -m marlogue train --config examples/coordination.yaml \
        --env environment.parallel_env          # run from this folder, or with your own models

In the library it would be `envs/alphabet_v0.py` and a line in `envs/registry.py`. Two agents are
shown a letter each; the team earns 1 when their words are different and in alphabetical order.
"""

from marlogue.envs import TASKS, BatchRunner, Start, TextEnv, check_text_env, make

ROWS = [{"letters": pair} for pair in (["a", "b"], ["c", "d"], ["m", "n"])]


def first_prompt(item):
    return f"Say a word that begins with {item['letters'][0]}."


def second_prompt(item):
    return f"Say a word that begins with {item['letters'][1]}."


def reward(first_words, second_words, batch_items):
    """A team reward per joint action; `batch_items[0]` is the row that they belong to."""
    letters = batch_items[0]["letters"]
    return [
        float(first < second and first[:1] == letters[0] and second[:1] == letters[1])
        for first, second in zip(first_words, second_words, strict=True)
    ]


def parallel_env(**kwargs):
    """The environment; keyword arguments take the place of the task's own."""
    settings = {
        "dataset": ROWS,
        "reward_func": reward,
        "formatters": [first_prompt, second_prompt],
        "agents": ["first", "second"],
        "name": "alphabet_v0",
    }
    return TextEnv(**{**settings, **kwargs})


def main():
    TASKS["alphabet_v0"] = parallel_env
    env = make("alphabet_v0")
    check_text_env(env)  # raises at the first fault
    runner = BatchRunner(env)  # many episodes at once, as the trainers play them
    episodes = runner.reset([Start(options={"row": row}) for row in range(3)], num_generations=2)
    answers = [("apple", "bear"), ("bear", "apple")] + [("cat", "dog"), ("cat", "cow")] * 2
    results = runner.step(
        episodes, [dict(zip(env.possible_agents, answer, strict=True)) for answer in answers]
    )
    for episode, answer, result in zip(episodes, answers, results, strict=True):
        print(f"row {episode.infos['first']['row']}: {answer} earns {result.rewards['first']}")


if __name__ == "__main__":
    main()
