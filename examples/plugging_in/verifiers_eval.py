"""verifiers plays and scores a team that MAAC trains: each agent in a seat, with its own model.

    pip install "marlogue[verifiers]"
    python examples/plugging_in/verifiers_eval.py [--epochs 80]

Two agents see a cue and have to say the same word. `ChatServer` puts their policies behind OpenAI's
protocol on this machine; verifiers asks them for every turn, keeps a trace per agent, and takes the
environment's rewards. Returns are means over 32 episodes, 1 at most.
"""

import argparse
import asyncio

import verifiers.v1 as vf

from marlogue.agents import SamplingParams, tiny_model
from marlogue.algorithms import MAACConfig, MAACTrainer
from marlogue.envs import coordination_v0
from marlogue.wrappers.chat_server import ChatServer
from marlogue.wrappers.verifiers import environment

SEATS = ("agent_0", "agent_1")


def make_trainer(epochs):
    models = [tiny_model(coordination_v0.VOCABULARY, seed=seed) for seed in range(3)]
    return MAACTrainer(
        env=coordination_v0.parallel_env(),
        agents=[model for model, _ in models[:2]],
        critic_model=models[2][0],
        tokenizer=models[0][1],
        args=MAACConfig(
            num_train_epochs=epochs,
            num_generations=16,
            rollout_buffer_size=64,
            agent_learning_rate=3e-3,
            critic_learning_rate=3e-3,
            max_new_tokens=1,
            eval_interval=0,
            verbose=False,
        ),
    )


async def play(task, client, times):
    context = vf.ModelContext(model="agent_0", client=client)
    async with task.serving():
        slots = [slot for row in task.taskset for slot in task.slots(row, times)]
        return await asyncio.gather(*(task.run_slot(slot, context) for slot in slots))


def mean_return(trainer, task):
    policies = dict(zip(SEATS, trainer.agents, strict=True))
    with ChatServer(policies, SamplingParams(max_new_tokens=1)) as server:
        client = vf.EvalClientConfig(base_url=server.url, api_key_var="NO_KEY_NEEDED")
        episodes = asyncio.run(play(task, client, times=8))
    if not all(episode.ok for episode in episodes):
        raise RuntimeError(next(e.errors or e.traces for e in episodes if not e.ok))
    traces = [trace for episode in episodes for trace in episode.traces]
    return sum(trace.reward for trace in traces) / len(traces)


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--epochs", type=int, default=80, help="over the four rows")
    options = parser.parse_args()

    # An agent without a model of its own in the configuration is played by the run's.
    config = {seat: {"model": seat} for seat in SEATS}
    task = environment("coordination_task", coordination_v0.parallel_env(), config=config)
    trainer = make_trainer(options.epochs)
    print(f"mean return before: {mean_return(trainer, task):.3f}")
    trainer.train()
    print(f"mean return after:  {mean_return(trainer, task):.3f}")


if __name__ == "__main__":
    main()
