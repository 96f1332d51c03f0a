"""From documents to a trained model: data, tokenizer, tasks, training runs. Importing it alone is free."""
