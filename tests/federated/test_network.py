"""A federation of real processes: parties that die, send nonsense or send too little, and what passes on the wire."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch

from privet.accounting.ledger import Ledger
from privet.federated.deployment import LoopbackDeployment, quiet_environment, write_app
from privet.federated.federation_recipe import FederatedRecipe
from privet.federated.results import ROUNDS_NAME, read_result
from privet.federated.wire import CountingProxy, Traffic, free_port
from privet.training.checkpoint import load_checkpoint

# Parties 1 and 2 send nonsense in the first round; party 0 is killed in the second, after it was charged.
FAULTY_APPS = """
import json, os, signal
from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord

from privet.federated.apps import client_app, server_app
from privet.federated.recipe_apps import _finished, load_coordinator, load_party, load_patience


def ruin(message, context, call_next):
    number, place = context.node_config["partition-id"], message.content["facts"]["round"]
    reply = call_next(message, context)
    values = reply.content["values"]["values"].numpy().copy()
    if place == 1 and number == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    if place == 0 and number == 1:
        values[3] = np.nan
    if place == 0 and number == 2:
        values = values[:-1].reshape(1, -1)
    reply.content["values"] = ArrayRecord({"values": Array(values)})
    return reply


def after(coordinator, report, context):
    told = {"accepted": len(report.accepted), "refused": sorted(report.refused.values()), "silent": len(report.silent)}
    with (Path(context.run_config["folder"]) / "rounds.jsonl").open("a") as file:
        file.write(json.dumps(told) + chr(10))


client = client_app(load_party, mods=[ruin])
server = server_app(load_coordinator, patience=load_patience, after=after, finished=_finished)
"""


def recipe_of(*, num_parties: int, answer_s: float) -> FederatedRecipe:
    source = dict(FederatedRecipe.load("fashion_mnist_small", mask_rate=0.5, num_rounds=2).source)
    federation = {**source["federation"], "num_parties": num_parties, "max_records": 10_000, "answer_s": answer_s}
    return FederatedRecipe.from_dict({**source, "model": "logistic_regression", "federation": federation})


def test_parties_that_die_or_send_nonsense_do_not_touch_the_model_and_stay_charged(tmp_path: Path) -> None:
    pytest.importorskip("flwr")
    recipe, folder = recipe_of(num_parties=4, answer_s=45.0), tmp_path / "run"
    folder.mkdir()
    recipe.save(folder / "federation.toml")
    write_app(folder / "app", {"recipe": str(folder / "federation.toml"), "folder": str(folder)}, apps=FAULTY_APPS)
    with LoopbackDeployment(folder=folder, num_parties=4) as deployment:
        traffic = deployment.run(folder / "app", rounds=folder / ROUNDS_NAME, timeout_s=400)
    first, second = (json.loads(line) for line in (folder / ROUNDS_NAME).read_text().splitlines())
    assert (first["accepted"], first["silent"]) == (2, 0)
    assert [words[:10] for words in first["refused"]] == ["it contain", "it has the"]
    assert second == {"accepted": 3, "refused": [], "silent": 1}
    checkpoint = load_checkpoint(folder / "coordinator" / "checkpoint.safetensors")
    assert checkpoint is not None
    assert all(bool(tensor.isfinite().all()) for tensor in checkpoint.tensors.values())
    assert read_result(folder).measures["accuracy"] > 0.3
    for who in ("coordinator", "party0", "party1", "party2", "party3"):
        assert Ledger.read(folder / who / "ledger.jsonl").charged_rounds == 2
    assert read_result(folder).guarantee["epsilon"] == pytest.approx(recipe.agreement.guarantee().epsilon)
    # four parties got 7,850 weights first; three of them sent half as many
    assert traffic[0].down > 4 * 4 * 7850
    assert traffic[1].up > 3 * 4 * 7850 / 2


@pytest.mark.slow
def test_the_simulation_engine_runs_the_same_apps(tmp_path: Path) -> None:
    pytest.importorskip("flwr")
    pytest.importorskip("ray")
    recipe_of(num_parties=3, answer_s=120.0).save(tmp_path / "small.toml")
    command = [
        sys.executable,
        str(Path(__file__).with_name("simulation.py")),
        str(tmp_path / "small.toml"),
        str(tmp_path),
    ]
    # a process of its own: the engine's workers and its warnings end with it
    environment = {**quiet_environment(tmp_path / "flower"), "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run(command, check=True, env=environment, capture_output=True, timeout=300)
    assert read_result(tmp_path).measures["accuracy"] > 0.3
    for who in ("coordinator", "party0", "party1", "party2"):
        assert Ledger.read(tmp_path / who / "ledger.jsonl").charged_rounds == 2


def test_messages_survive_the_network_and_what_is_no_answer_is_refused() -> None:
    pytest.importorskip("flwr")
    import numpy as np
    from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

    from privet.errors import PrivetError
    from privet.federated.apps import pack_answer, pack_broadcast, unpack_answer, unpack_broadcast
    from privet.federated.messages import Answer, Broadcast, Outcome

    values = np.arange(3, dtype=np.float32)
    sent = Broadcast(round=2, agreement="a", mask_seed=3, since=None, values=values)
    found = unpack_broadcast(pack_broadcast(sent))
    assert (found.round, found.agreement, found.mask_seed, found.since) == (2, "a", 3, None)
    answer = Answer(round=2, agreement="a", mask_seed=3, outcome=Outcome.SPENT, values=values)
    back = unpack_answer(pack_answer(answer))
    assert (back.outcome, back.round) == (Outcome.SPENT, 2)
    assert np.array_equal(back.values, values)
    arrays = ArrayRecord({"values": Array(values)})
    for ruined in (
        RecordDict({}),
        RecordDict({"facts": ConfigRecord({"outcome": "spent"}), "values": arrays}),
        RecordDict({"facts": ConfigRecord({"outcome": "maybe", "round": 1, "mask_seed": 1}), "values": arrays}),
        RecordDict({"facts": arrays, "values": arrays}),
    ):
        with pytest.raises(PrivetError):
            unpack_answer(ruined)


def test_the_proxy_counts_every_byte_in_both_directions() -> None:
    server = socket.create_server(("127.0.0.1", free_port()))

    def echo_twice() -> None:
        connection, _ = server.accept()
        with connection:
            data = b""
            while len(data) < 100_000:
                data += connection.recv(1 << 16)
            connection.sendall(data + data)

    thread = threading.Thread(target=echo_twice)
    thread.start()
    with CountingProxy(server.getsockname()[1]) as proxy:
        with socket.create_connection(("127.0.0.1", proxy.port)) as client:
            client.sendall(bytes(100_000))
            received = 0
            while received < 200_000:
                received += len(client.recv(1 << 16))
        thread.join()
        server.close()
        assert proxy.traffic == Traffic(up=100_000, down=200_000)
        assert (proxy.traffic - Traffic(up=1, down=2)).total == 299_997


def test_a_federation_inside_one_process_learns_and_reports_its_cost(tmp_path: Path) -> None:
    from privet.federated.running import run_here

    torch.set_num_threads(1)
    recipe = recipe_of(num_parties=3, answer_s=1.0)
    result = run_here(recipe, tmp_path / "run")
    assert result.measures["accuracy"] > 0.3
    assert result.guarantee["epsilon"] == pytest.approx(recipe.agreement.guarantee().epsilon)
    assert "add-or-remove one record" in result.words
    assert FederatedRecipe.load(tmp_path / "run" / "federation.toml").agreement.hash == recipe.agreement.hash
