"""Log-loss and accuracy of class probabilities beside scikit-learn's, all machines as they come, five folds.

python -m benchmarks.probabilities
"""

from __future__ import annotations

import warnings

import numpy as np
import torch
from sklearn.datasets import load_breast_cancer, load_digits, load_iris, load_wine, make_moons
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold, cross_validate
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC

import notsodeep as nsd


def main() -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", FutureWarning)  # scikit-learn will move the probabilities of SVC to a class
    digits, labels = load_digits(return_X_y=True)
    tables = {
        "iris": load_iris(return_X_y=True),
        "wine": load_wine(return_X_y=True),
        "breast cancer": load_breast_cancer(return_X_y=True),
        "two moons, 300": make_moons(300, noise=0.2, random_state=0),
        "digits, 600": (digits[:600], labels[:600]),
    }
    machines = {
        "DEQClassifier()": nsd.DEQClassifier(),
        "SVC(probability=True)": make_pipeline(StandardScaler(), SVC(probability=True, random_state=0)),
        "LogisticRegression()": make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000)),
    }
    print(f"| data | {' | '.join(machines)} |\n|---|" + "---|" * len(machines))
    for name, (X, y) in tables.items():
        folds = StratifiedKFold(5, shuffle=True, random_state=0)
        cells = []
        for machine in machines.values():
            found = cross_validate(machine, X, y, cv=folds, scoring=("neg_log_loss", "accuracy"))
            loss, right = -np.mean(found["test_neg_log_loss"]), np.mean(found["test_accuracy"])
            cells.append(f"{loss:.3f}, {100 * right:.1f} %")
        print(f"| {name} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
