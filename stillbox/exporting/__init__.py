"""Export: a trained model as an artefact that other runtimes run, verified before it is written."""
