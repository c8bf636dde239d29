"""Two ways to change what the critic is: the text that it reads, and the part that learns.

    python examples/extending/critic.py

`questions_first` is a joint formatter: it writes MAAC's critic its own kind of text, here the
prompts without the labels. `HeadOnlyCritic` trains its value head and leaves its trunk as it is,
which saves the optimiser state of a whole model. From YAML both go by dotted path:
`joint_formatter: critic.questions_first`, `critics: [{name: critic.make_critic, kwargs: {...}}]`.
"""

import torch

from marlogue import MAACConfig, MAACTrainer, tiny_model
from marlogue.agents import Critic
from marlogue.envs import coordination_v0

WORDS = coordination_v0.VOCABULARY


def questions_first(prompts, completions=None):
    """The critic's text. `completions` are given for Q(h, a) only, and None for V(h)."""
    return " ".join([*prompts, *(completions or ())])


class HeadOnlyCritic(Critic):
    """A critic whose trunk is frozen: what `parameters` yields is what is trained."""

    def parameters(self):
        yield from self.value_head.parameters()

    def values(self, histories):
        with torch.no_grad():  # no graph through the trunk, so no memory for one
            hidden = self.trunk.last_hidden(histories)
        return self.value_head(hidden)


def make_critic(seed=0):
    """A factory, for YAML and for `main`."""
    model, tokenizer = tiny_model(WORDS, seed=seed)
    generator = torch.Generator().manual_seed(seed)
    return HeadOnlyCritic(model, tokenizer, value_head_hidden_dim=16, generator=generator)


def main():
    models = [tiny_model(WORDS, seed=seed) for seed in (1, 2)]
    critic = make_critic(seed=3)
    trunk = {name: weight.clone() for name, weight in critic.model.state_dict().items()}
    env = coordination_v0.parallel_env()
    trainer = MAACTrainer(
        agents=[model for model, _ in models],
        tokenizer=models[0][1],
        critics=[critic],
        joint_formatter=questions_first,
        env=env,
        eval_env=env,
        args=MAACConfig(
            max_steps=160,
            num_generations=16,
            rollout_buffer_size=64,
            agent_learning_rate=3e-3,
            critic_learning_rate=1e-2,
            max_new_tokens=1,
            eval_interval=0,
            verbose=False,
        ),
    )
    trainer.train()
    frozen = all(torch.equal(trunk[name], now) for name, now in critic.model.state_dict().items())
    reward = trainer.evaluate()["eval/team/turn_1/reward_mean"]
    print(f"trunk unchanged: {frozen}; mean reward after {trainer.updates} updates: {reward:.3f}")


if __name__ == "__main__":
    main()
