from privet.reports.axes import plot_noise as plot_noise
from privet.reports.axes import plot_spending as plot_spending
from privet.reports.axes import plot_trade_off as plot_trade_off
from privet.reports.comparison import write_comparison as write_comparison
from privet.reports.content import gather as gather
from privet.reports.model_card import write_card as write_card
from privet.reports.run_report import write_report as write_report
