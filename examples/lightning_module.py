"""Lightning: a LightningModule that wraps a model, trained and tested, and loaded again from its checkpoint.

Install: pip install "torch-linformer[hf]" lightning
Run: python examples/lightning_module.py
"""

import tempfile

import lightning
import torch
from torch.utils.data import DataLoader
from transformers import DataCollatorWithPadding

from documents import documents, word_tokenizer
from torch_linformer import LinformerConfig, LinformerForSequenceClassification


class Classifier(lightning.LightningModule):
    def __init__(self, config):
        super().__init__()
        self.model = LinformerForSequenceClassification(LinformerConfig(**config))

    def training_step(self, batch):
        return self.model(**batch).loss

    def test_step(self, batch):
        right = self.model(**batch).logits.argmax(-1) == batch["labels"]
        self.log("accuracy", right.float().mean(), batch_size=len(right))

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


train, held_out = documents("asyncio", "email")
tokenizer = word_tokenizer([row["text"] for row in train], max_length=256)
train, held_out = (
    [{**tokenizer(row["text"], truncation=True), "labels": row["label"]} for row in rows] for rows in (train, held_out)
)
collator = DataCollatorWithPadding(tokenizer)
batches = DataLoader(train, batch_size=16, shuffle=True, collate_fn=collator)
test_batches = DataLoader(held_out, batch_size=16, collate_fn=collator)

lightning.seed_everything(0)
config = {
    "vocab_size": len(tokenizer),
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 128,
    "max_position_embeddings": 256,
    "k": 64,
    "num_labels": 2,
}
classifier = Classifier(config)
with tempfile.TemporaryDirectory() as folder:
    trainer = lightning.Trainer(max_epochs=4, default_root_dir=folder, logger=False, enable_progress_bar=False)
    before = trainer.test(classifier, test_batches, verbose=False)[0]["accuracy"]
    trainer.fit(classifier, batches)
    after = trainer.test(classifier, test_batches, verbose=False)[0]["accuracy"]
    trainer.save_checkpoint(f"{folder}/classifier.ckpt")
    loaded = Classifier.load_from_checkpoint(f"{folder}/classifier.ckpt", config=config)
    again = trainer.test(loaded, test_batches, verbose=False)[0]["accuracy"]
print("held-out accuracy before:", round(before, 4))
print("held-out accuracy after:", round(after, 4))
print("held-out accuracy once loaded:", round(again, 4))
