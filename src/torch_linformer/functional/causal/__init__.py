"""Causal Linformer attention: slots that are running means of what came before."""
