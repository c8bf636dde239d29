"""A new generation backend: anything with `generate` and `sync`.

    python examples/extending/generation_backend.py

A backend turns prompt ids into completion ids for one model. This one is the shortest there is: it
reads the whole sequence anew for every token, one sequence at a time, with no cache. It draws from
the random numbers that each completion's stream names, and so says the very same as the built-in
backend. One that calls a server would do its own sampling, and in `sync` send it the new weights.
"""

import torch

from marlogue import LLMPolicy, SamplingParams, tiny_model
from marlogue.agents import Generated, end_token_ids, sample_tokens, uniforms

WORDS = ("one", "two", "three", "four", "five", "six", "seven", "eight")


class PlainBackend:
    """Decodes without batches and without a cache."""

    def __init__(self, model, end_ids):
        self.model = model
        self.end_ids = end_ids

    def sync(self, model):
        """Called when the weights have changed; this backend uses the model itself."""

    @torch.no_grad()
    def generate(self, prompts, params, streams):
        """One `Generated` per prompt: the ids with a generated end token, and whether the limit
        cut them."""
        return [
            self.one(list(prompt), params, uniforms([stream], params.max_new_tokens)[0])
            for prompt, stream in zip(prompts, streams, strict=True)
        ]

    def one(self, prompt, params, random):
        answer = []
        for number in random:
            ids = torch.tensor([prompt + answer])
            logits = self.model(ids, attention_mask=torch.ones_like(ids)).logits[:, -1].float()
            answer.append(int(sample_tokens(logits, number.unsqueeze(0), params)))
            if answer[-1] in self.end_ids:
                return Generated(tuple(answer), truncated=False)
        return Generated(tuple(answer), truncated=True)


def main():
    model, tokenizer = tiny_model(WORDS, seed=1)
    plain = LLMPolicy(
        model, tokenizer, backend=PlainBackend(model, end_token_ids(model, tokenizer))
    )
    built_in = LLMPolicy(model, tokenizer)  # a policy with a backend goes to agents=[...]
    sampling = SamplingParams(max_new_tokens=12, temperature=1.5)
    prompts = ["one two", "three", "four five six"]
    streams = [(0, number) for number in range(len(prompts))]
    ours = plain.act(prompts, sampling, streams)
    theirs = built_in.act(prompts, sampling, streams)
    for prompt, answer in zip(prompts, ours, strict=True):
        print(f"{prompt} -> {answer.text}")
    print(f"the same as the built-in backend: {ours == theirs}")


if __name__ == "__main__":
    main()
