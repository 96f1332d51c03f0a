import lightning
import torch
from torch.testing import assert_close
from torch.utils.data import DataLoader
from transformers import DataCollatorWithPadding


class Classifier(lightning.LightningModule):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def training_step(self, batch):
        return self.model(**batch).loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=5e-3)


def test_a_module_that_wraps_a_model(model, tokenizer, examples, batch, tmp_path):
    loader = DataLoader(examples, batch_size=8, collate_fn=DataCollatorWithPadding(tokenizer))
    before = model(**batch).loss.item()
    trainer = lightning.Trainer(
        max_epochs=2, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False
    )
    trainer.fit(Classifier(model), loader)
    assert model.eval()(**batch).loss.item() < before / 2
    trainer.save_checkpoint(tmp_path / "checkpoint")
    weights = torch.load(tmp_path / "checkpoint", weights_only=True)["state_dict"]
    assert_close({name.removeprefix("model."): value for name, value in weights.items()}, dict(model.state_dict()))
