"""OpenEnv serves a text environment; two agents learn over the network.

    pip install "marlogue[openenv]"
    python examples/plugging_in/openenv_server.py [--episodes 600]
    python examples/plugging_in/openenv_server.py --serve --port 8000

Two agents see a cue and have to say the same word. The environment runs in a server of OpenEnv's;
here each agent remembers what a word earned after a cue (each has a reward of its own), and says
the best one or, now and then, another. Returns are means over 200 episodes, 1 at most. With
`--serve` there is only the server.
"""

import argparse
import random
import socket
import threading
from collections import defaultdict

import uvicorn

from marlogue.envs import coordination_v0
from marlogue.wrappers.openenv import TeamAction, TeamClient, application

WORDS = list(coordination_v0.ANSWERS.values())


class Learner:
    """A table from cue and word to the mean of what it earned."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.earned = defaultdict(lambda: [0.0, 0])

    def say(self, cue, explore):
        if self.random.random() < explore:
            return self.random.choice(WORDS)
        return max(WORDS, key=lambda word: self.earned[cue, word][0])

    def learn(self, cue, word, reward):
        mean, count = self.earned[cue, word]
        self.earned[cue, word] = [mean + (reward - mean) / (count + 1), count + 1]


def play(client, team, episodes, explore, learn):
    total = 0.0
    for _ in range(episodes):
        cues = client.reset().observation.prompts
        texts = {agent: team[agent].say(cue, explore) for agent, cue in cues.items()}
        result = client.step(TeamAction(texts=texts))
        for agent, reward in result.observation.rewards.items() if learn else ():
            team[agent].learn(cues[agent], texts[agent], reward)
        total += result.reward
    return total / episodes


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--episodes", type=int, default=600, help="to learn from")
    parser.add_argument("--serve", action="store_true", help="serve until interrupted")
    parser.add_argument("--port", type=int, default=0, help="0 takes a free one")
    options = parser.parse_args()

    app = application(coordination_v0.parallel_env())
    if options.serve:
        uvicorn.run(app, port=options.port)
        return
    listening = socket.create_server(("127.0.0.1", options.port))  # already takes connections
    server = uvicorn.Server(uvicorn.Config(app, log_level="critical"))
    thread = threading.Thread(target=server.run, args=([listening],))
    thread.start()
    team = {f"agent_{k}": Learner(seed=k) for k in range(2)}
    with TeamClient(f"http://127.0.0.1:{listening.getsockname()[1]}").sync() as client:
        print(f"mean return before: {play(client, team, 200, explore=1, learn=False):.3f}")
        play(client, team, options.episodes, explore=0.3, learn=True)
        print(f"mean return after:  {play(client, team, 200, explore=0, learn=False):.3f}")
    server.should_exit = True
    thread.join()


if __name__ == "__main__":
    main()
