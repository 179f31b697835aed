"""Program of every Flower client, in a module of its own so that Ray's workers import it once
instead of unpickling it for each message."""

from functools import cache
from pathlib import Path

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from benchmarks.peers.workload import Fleet, Net, train

app = ClientApp()


@cache
def open_fleet(folder: str) -> Fleet:
    """The data, opened once per worker."""
    return Fleet(Path(folder))


@app.train()
def train_client(message: Message, context: Context) -> Message:
    """One update, as in Flower's PyTorch quickstart: a fresh model, the weights of the message, the
    device's windows."""
    torch.set_num_threads(1)
    model = Net()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    x, y = open_fleet(message.content["config"]["data"])[int(context.node_config["partition-id"])]
    train(model, x, y)
    content = {
        "arrays": ArrayRecord(model.state_dict()),
        "metrics": MetricRecord({"num-examples": len(y)}),
    }
    return Message(content=RecordDict(content), reply_to=message)
